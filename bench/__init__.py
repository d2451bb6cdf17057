"""Measures fastutils against what a vLLM user runs today, in pairs. See README.md in this folder."""
