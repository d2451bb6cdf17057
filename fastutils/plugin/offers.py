"""Finds out, helper by helper, whether ours can stand in for the one that this vLLM has."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fastutils import _select
from fastutils.plugin import announcing, rebinding, source_facts, variants, versions


@dataclass(frozen=True)
class Offer:
    """One helper: `ours`, to be put in the place of `upstream`; without them, only the reason why not."""

    name: str
    reason: str
    upstream: Any = None
    ours: Any = None
    staged: bool = False

    @property
    def stands(self) -> bool:
        return self.ours is not None


def all_offers(upstream: ModuleType, chosen: Iterable[str], staged: bool = False) -> list[Offer]:
    """An offer for every helper, in upstream's order; only those in `chosen` can stand. `staged`: buffers are, then."""
    source = source_facts.source_of(upstream)
    known = {} if source is None else source_facts.definitions(source)
    offers = []
    for name in versions.FORMS:
        if name not in chosen:
            offers.append(Offer(name, "not asked for"))
        elif source is None:
            offers.append(Offer(name, f"the source of {upstream.__name__} is not there to be compared"))
        else:
            try:
                offers.append(_offer(name, upstream, known.get(name), staged))
            except Exception as error:
                announcing.LOGGER.debug("%s cannot be served", name, exc_info=True)
                offers.append(Offer(name, f"ours cannot be used: {type(error).__name__}: {error}"))
    return _only_whole_pairs(_only_unused_classes(offers))


def _offer(name: str, upstream: ModuleType, definition: source_facts.Definition | None, staged: bool) -> Offer:
    if definition is None:
        return Offer(name, "this vLLM does not have it")
    if not hasattr(upstream, name):
        return Offer(name, f"{upstream.__name__} is only half imported")
    theirs = getattr(upstream, name)
    changed = source_facts.why_changed(theirs, definition, upstream)
    if changed is not None:
        return Offer(name, changed)
    form = versions.form_of(name, source_facts.fingerprint(definition))
    if form is None:
        return Offer(name, "this vLLM has it in a form that fastutils does not know")
    if form.variant is None:
        return Offer(name, form.why_not)
    choice = _select.choose(name)
    staged = staged and form.variant in variants.STAGED
    build = variants.VARIANTS[form.variant]
    ours = build(upstream, choice.value, staged_by_default=True) if staged else build(upstream, choice.value)
    misfit = _misfit(theirs, ours)
    if misfit is not None:
        return Offer(name, misfit)
    extra = ("" if form.variant == "as it is" else f", {form.variant}") + (", staged" if staged else "")
    return Offer(name, f"{choice.implementation}{extra} ({choice.reason})", theirs, ours, staged)


def _misfit(theirs: Any, ours: Any) -> str | None:
    """How ours would not take a call that theirs takes: the last check, should the table and our code ever disagree."""
    wanted = list(inspect.signature(theirs).parameters.values())
    accepted = list(inspect.signature(ours).parameters.values())
    for position, parameter in enumerate(wanted):
        mine = accepted[position] if position < len(accepted) else None
        if mine is None or (mine.name, mine.kind) != (parameter.name, parameter.kind):
            return f"ours does not take the parameter {parameter.name} as this vLLM's does"
        if mine.default is mine.empty and parameter.default is not parameter.empty:
            return f"ours requires the parameter {parameter.name}, this vLLM's does not"
    for mine in accepted[len(wanted) :]:
        if mine.default is mine.empty and mine.kind not in (mine.VAR_POSITIONAL, mine.VAR_KEYWORD):
            return f"ours requires the parameter {mine.name}, which this vLLM's does not have"
    return None


def _only_unused_classes(offers: list[Offer]) -> list[Offer]:
    classes = [offer.upstream for offer in offers if isinstance(offer.upstream, type)]
    in_use = rebinding.classes_in_use(classes) if classes else {}
    return [Offer(offer.name, in_use[offer.upstream]) if offer.upstream in in_use else offer for offer in offers]


def _only_whole_pairs(offers: list[Offer]) -> list[Offer]:
    standing = {offer.name for offer in offers if offer.stands}
    lone = {
        name: pair for pair in versions.PAIRS for name in pair if name in standing and not standing.issuperset(pair)
    }
    return [
        Offer(offer.name, f"{' and '.join(lone[offer.name])} go together") if offer.name in lone else offer
        for offer in offers
    ]
