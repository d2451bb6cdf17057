"""install() and uninstall() on a fake vLLM: what is replaced, where, and how it is put back."""

import gc
import logging
import sys
import threading
import types

import fake_vllm
import pytest

import fastutils
from fastutils import _select, plugin
from fastutils.plugin import versions

ALL = tuple(versions.FORMS)


def reason_of(report, name):
    (row,) = [row for row in report.rows if row.name == name]
    return "" if row.served else row.reason


def test_every_helper_is_replaced_in_the_module_itself(vllm_tree):
    utils = vllm_tree()("utils")
    report = plugin.install()
    assert report.served == ALL
    assert (report.vllm_version, report.note, report.warnings) == ("0.25.1", "", ())
    assert utils.ConstantList is fastutils.ConstantList
    assert utils.copy_slice is fastutils.copy_slice
    assert issubclass(utils.CpuGpuBuffer, fastutils.CpuGpuBuffer)
    assert utils.a_helper_that_ours_lack() is fastutils.copy_slice


def test_modules_imported_before_get_ours_under_whatever_name(vllm_tree):
    load = vllm_tree()
    request, runner = load("request"), load("runner")
    plugin.install()
    assert type(request.view([1])) is fastutils.ConstantList
    assert runner.copy_slice is fastutils.copy_slice
    assert runner.Buffer is load("utils").CpuGpuBuffer


def test_modules_imported_later_get_ours(vllm_tree):
    load = vllm_tree()
    plugin.install()
    assert load("late").copy_slice is fastutils.copy_slice


def test_one_buffer_class_everywhere(vllm_tree):
    torch = pytest.importorskip("torch")
    load = vllm_tree()
    runner = load("runner")
    plugin.install()
    buffer = load("utils").CpuGpuBuffer(4, dtype=torch.int32, device=torch.device("cpu"))
    assert runner.is_buffer(buffer)
    assert isinstance(buffer, fastutils.CpuGpuBuffer)
    assert type(buffer).__qualname__ == "CpuGpuBuffer"


def test_modules_of_other_packages_get_ours_too(vllm_tree, monkeypatch):
    load = vllm_tree()
    other = types.ModuleType("another_plugin")
    other.Buf = load("utils").CpuGpuBuffer
    monkeypatch.setitem(sys.modules, "another_plugin", other)
    plugin.install()
    assert other.Buf is load("utils").CpuGpuBuffer
    plugin.uninstall()
    assert other.Buf is load("utils").CpuGpuBuffer
    assert not issubclass(other.Buf, fastutils.CpuGpuBuffer)


def test_nothing_else_refers_to_what_was_replaced(vllm_tree):
    load = vllm_tree()
    originals = {name: getattr(load("utils"), name) for name in ALL}
    load("request"), load("runner")
    plugin.install()
    for name, original in originals.items():
        holders = [holder for holder in gc.get_referrers(original) if isinstance(holder, dict) and "__name__" in holder]
        assert not [holder["__name__"] for holder in holders if holder["__name__"].startswith("vllm")], name


def test_uninstall_restores_every_binding_exactly(vllm_tree):
    load = vllm_tree()
    modules = [load(name) for name in ("utils", "request", "runner")]
    before = [dict(vars(module)) for module in modules]
    plugin.install()
    assert [dict(vars(module)) for module in modules] != before
    late = load("late")
    assert plugin.uninstall().note == "the plugin was uninstalled in this process"
    for module, namespace in zip(modules, before, strict=True):
        assert list(vars(module)) == list(namespace)
        assert all(vars(module)[name] is value for name, value in namespace.items())
    assert late.copy_slice is modules[0].copy_slice
    assert plugin.status().note == "the plugin was uninstalled in this process"


def test_uninstall_without_install_does_nothing(vllm_tree):
    utils = vllm_tree()("utils")
    before = dict(vars(utils))
    plugin.uninstall()
    assert dict(vars(utils)) == before


def test_uninstall_leaves_what_somebody_else_put_there(vllm_tree, caplog):
    load = vllm_tree()
    utils, runner = load("utils"), load("runner")
    original = utils.copy_slice
    plugin.install()
    utils.copy_slice = mine = object()
    plugin.uninstall()
    assert utils.copy_slice is mine
    assert runner.copy_slice is original
    assert "vllm.v1.utils.copy_slice holds something else by now and stays so" in caplog.text


def test_it_can_be_installed_again(vllm_tree):
    utils = vllm_tree()("utils")
    original = utils.copy_slice
    plugin.install()
    plugin.uninstall()
    assert plugin.install().served == ALL
    assert utils.copy_slice is fastutils.copy_slice
    plugin.uninstall()
    assert utils.copy_slice is original


def test_a_second_load_changes_nothing_and_says_nothing(vllm_tree, caplog):
    utils = vllm_tree()("utils")
    caplog.set_level(logging.INFO)
    plugin.load()
    first = plugin.status()
    buffer_class = utils.CpuGpuBuffer
    assert len(caplog.records) == 1
    plugin.load()
    assert plugin.install() is first
    assert utils.CpuGpuBuffer is buffer_class
    assert len(caplog.records) == 1


def test_one_line_says_it_all(vllm_tree, caplog):
    vllm_tree("0.32.0")("utils")
    caplog.set_level(logging.INFO)
    plugin.load()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("vllm.fastutils", logging.INFO)
    line = record.getMessage()
    assert "\n" not in line
    assert "of 14 helpers of vLLM 0.32.0 replaced: ConstantList, " in line
    assert "; left alone: run_api_server_worker_proc (from 0.31 on" in line


def test_threads_install_once(vllm_tree):
    utils = vllm_tree()("utils")
    start = threading.Barrier(8)
    reports = []

    def work():
        start.wait(30)
        reports.append(plugin.install())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({id(report) for report in reports}) == 1
    plugin.uninstall()
    assert utils.copy_slice(None, None, 0) == "theirs"


def test_vllm_is_imported_if_need_be(vllm_tree):
    load = vllm_tree()
    assert "vllm" not in sys.modules
    assert plugin.install().served == ALL
    assert load("request").ConstantList is fastutils.ConstantList


@pytest.mark.parametrize("names", [["copy_slice"], ["copy_slice", "ConstantList"]])
def test_only_the_names_given(vllm_tree, names):
    utils = vllm_tree()("utils")
    report = plugin.install(names)
    assert set(report.served) == set(names)
    assert utils.tensor_data(None) == "theirs"
    assert reason_of(report, "tensor_data") == "not asked for"


def test_an_unknown_name_is_an_error(vllm_tree):
    vllm_tree()
    with pytest.raises(ValueError, match=r"names: copy_slic is no helper of .* choose from ConstantList"):
        plugin.install(["copy_slic"])
    assert plugin.status().note == "not loaded"


def test_the_switch_for_python_forms_counts_here_too(vllm_tree, monkeypatch):
    from fastutils import views

    monkeypatch.setenv("FASTUTILS_NO_EXTENSIONS", "1")
    load = vllm_tree()
    report = plugin.install()
    assert load("request").ConstantList is views.ConstantList
    assert "python (FASTUTILS_NO_EXTENSIONS is set)" in [row.reason for row in report.rows]


# What must be left alone.


def test_a_changed_helper_is_left_alone(vllm_tree, known_forms):
    known_forms(fake_vllm.UTILS)
    changed = fake_vllm.UTILS.replace(
        'def copy_slice(from_tensor, to_tensor, length):\n    return "theirs"',
        'def copy_slice(from_tensor, to_tensor, length):\n    return "new"',
    )
    assert changed != fake_vllm.UTILS
    utils = vllm_tree(utils=changed, known=False)("utils")
    report = plugin.install()
    assert reason_of(report, "copy_slice") == "this vLLM has it in a form that fastutils does not know"
    assert set(report.served) == set(ALL) - {"copy_slice"}
    assert utils.copy_slice(1, 2, 3) == "new"


@pytest.mark.parametrize("changed", versions.PAIRS[0])
def test_pairs_stay_together(vllm_tree, known_forms, changed):
    known_forms(fake_vllm.UTILS)
    old, new = {
        "IterationDetails": ("num_generation_tokens: int", "num_generation_tokens: int = 0"),
        "compute_iteration_details": ("(scheduler_output):", "(scheduler_output):\n    assert scheduler_output"),
    }[changed]
    assert fake_vllm.UTILS.count(old) == 1
    text = fake_vllm.UTILS.replace(old, new)
    vllm_tree(utils=text, known=False)
    report = plugin.install()
    other = next(name for name in versions.PAIRS[0] if name != changed)
    assert reason_of(report, changed) == "this vLLM has it in a form that fastutils does not know"
    assert reason_of(report, other) == "IterationDetails and compute_iteration_details go together"


def test_a_helper_that_vllm_lacks_is_left_alone(vllm_tree, known_forms):
    known_forms(fake_vllm.UTILS)
    start = fake_vllm.UTILS.index("def tensor_data")
    text = fake_vllm.UTILS[:start] + fake_vllm.UTILS[fake_vllm.UTILS.index("@dataclass") :]
    utils = vllm_tree(utils=text, known=False)("utils")
    report = plugin.install()
    assert reason_of(report, "tensor_data") == "this vLLM does not have it"
    assert not hasattr(utils, "tensor_data")
    assert "copy_slice" in report.served


def test_a_helper_of_somebody_else_is_left_alone(vllm_tree):
    utils = vllm_tree()("utils")

    def patched(from_tensor, to_tensor, length):
        return "patched"

    utils.copy_slice = patched
    report = plugin.install()
    reason = reason_of(report, "copy_slice")
    assert reason.startswith("something else stands in its place: ")
    assert "patched from " in reason
    assert __file__ in reason
    assert utils.copy_slice(1, 2, 3) == "patched"


@pytest.mark.parametrize("method", ["copy_to_gpu", "copy_later"])
def test_a_class_that_somebody_patched_is_left_alone(vllm_tree, method):
    utils = vllm_tree()("utils")
    original = utils.CpuGpuBuffer
    setattr(original, method, lambda self, n=None: "patched")
    report = plugin.install()
    assert "CpuGpuBuffer" not in report.served
    assert __file__ in reason_of(report, "CpuGpuBuffer")
    assert utils.CpuGpuBuffer is original


def test_a_class_with_instances_is_left_alone(vllm_tree):
    load = vllm_tree()
    view = load("request").view([1])
    report = plugin.install()
    assert reason_of(report, "ConstantList") == "instances of it exist already"
    assert isinstance(view, load("utils").ConstantList)
    assert set(report.served) == set(ALL) - {"ConstantList"}


def test_a_class_with_subclasses_is_left_alone(vllm_tree):
    utils = vllm_tree()("utils")

    class Derived(utils.CpuGpuBuffer):
        pass

    report = plugin.install()
    assert reason_of(report, "CpuGpuBuffer").endswith("Derived is derived from it")
    assert issubclass(Derived, utils.CpuGpuBuffer)


def test_without_its_source_all_is_left_alone(vllm_tree):
    utils = vllm_tree()("utils")
    utils.__spec__.loader = None
    report = plugin.install()
    assert report.served == ()
    assert {row.reason for row in report.rows} == {"the source of vllm.v1.utils is not there to be compared"}
    assert utils.copy_slice(1, 2, 3) == "theirs"


def test_a_half_imported_module_is_left_alone(vllm_tree):
    utils = vllm_tree()("utils")
    del utils.tensor_data
    report = plugin.install()
    assert reason_of(report, "tensor_data") == "vllm.v1.utils is only half imported"


def test_ours_that_cannot_be_imported_is_left_alone(vllm_tree, monkeypatch):
    utils = vllm_tree()("utils")
    choose = _select.choose

    def broken(name):
        if name == "copy_slice":
            raise ImportError("libtorch is gone")
        return choose(name)

    monkeypatch.setattr(_select, "choose", broken)
    report = plugin.install()
    assert reason_of(report, "copy_slice") == "ours cannot be used: ImportError: libtorch is gone"
    assert utils.copy_slice(1, 2, 3) == "theirs"
    assert "ConstantList" in report.served


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (
            "def copy_slice(from_tensor, to_tensor, length, stream=None):",
            "ours does not take the parameter stream as this vLLM's does",
        ),
        (
            "def copy_slice(to_tensor, from_tensor, length):",
            "ours does not take the parameter to_tensor as this vLLM's does",
        ),
        (
            "def copy_slice(from_tensor, to_tensor, length=1):",
            "ours requires the parameter length, this vLLM's does not",
        ),
        (
            "def copy_slice(from_tensor, to_tensor):",
            "ours requires the parameter length, which this vLLM's does not have",
        ),
        (
            "def copy_slice(from_tensor, to_tensor, *, length):",
            "ours does not take the parameter length as this vLLM's does",
        ),
    ],
)
def test_a_table_that_errs_is_caught_by_the_signature(vllm_tree, theirs, reason):
    text = fake_vllm.UTILS.replace("def copy_slice(from_tensor, to_tensor, length):", theirs)
    vllm_tree(utils=text)
    report = plugin.install()
    assert reason_of(report, "copy_slice") == reason


# Trouble: vLLM keeps its own, and the log says why.


def test_no_vllm_at_all(fresh_plugin, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "vllm", None)
    report = plugin.install()
    assert report.served == ()
    assert report.note.startswith("ModuleNotFoundError: ")
    assert report.trouble
    assert "nothing replaced: ModuleNotFoundError" in caplog.text


def test_a_half_installed_vllm(tmp_path, monkeypatch, fresh_plugin):
    fake_vllm.write(tmp_path)
    (tmp_path / "vllm/v1/utils.py").unlink()
    monkeypatch.syspath_prepend(tmp_path)
    assert plugin.install().note == "ModuleNotFoundError: No module named 'vllm.v1.utils'"


def test_a_vllm_that_breaks_on_import(vllm_tree):
    vllm_tree(utils="raise RuntimeError('no libcuda')", known=False)
    assert plugin.install().note == "RuntimeError: no libcuda"


def test_a_failure_in_the_middle_leaves_no_half(vllm_tree, monkeypatch):
    load = vllm_tree()

    class Stubborn(dict):
        def __setitem__(self, name, value):
            raise RuntimeError("not mine")

    utils, runner = load("utils"), load("runner")
    before = dict(vars(utils)), dict(vars(runner))
    spaces = [("vllm.v1.utils", vars(utils)), ("vllm.v1.stubborn", Stubborn(x=utils.copy_slice))]
    monkeypatch.setattr(plugin.rebinding, "_namespaces", lambda package: iter(spaces))
    report = plugin.install()
    assert report.note == "RuntimeError: not mine"
    assert (dict(vars(utils)), dict(vars(runner))) == before


def test_load_never_raises(fresh_plugin, monkeypatch, caplog):
    def explode(names=None):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(plugin, "install", explode)
    plugin.load()
    assert "vLLM's own helpers serve" in caplog.text


def test_an_unknown_version_gets_what_has_not_changed_and_one_warning(vllm_tree, caplog):
    utils = vllm_tree("0.99.0+cu130")("utils")
    report = plugin.install()
    assert report.served == ALL
    assert utils.copy_slice is fastutils.copy_slice
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "vLLM 0.99.0+cu130 is none of the versions" in warning.getMessage()


def test_a_local_part_of_the_version_does_not_count(vllm_tree):
    vllm_tree("0.25.1+cpu")("utils")
    assert plugin.install().warnings == ()


def test_two_versions_of_this_package_are_reported(vllm_tree, tmp_path, monkeypatch):
    vllm_tree()
    for number in ("0.0.1", "0.0.2"):
        info = tmp_path / number / f"vllm_fastutils-{number}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm-fastutils\nVersion: {number}\n")
        monkeypatch.syspath_prepend(tmp_path / number)
    report = plugin.install()
    assert report.served == ALL
    assert "several versions of vllm-fastutils are installed: 0.0.1 in " in report.warnings[0]


def test_lazily_loaded_modules_stay_unloaded(vllm_tree, monkeypatch):
    vllm_tree()

    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked for")

    monkeypatch.setitem(sys.modules, "lazy_module", Lazy("lazy_module"))
    assert plugin.install().served == ALL


def test_odd_things_among_the_modules_do_no_harm(vllm_tree, monkeypatch):
    vllm_tree()
    monkeypatch.setitem(sys.modules, "blocked", None)
    monkeypatch.setitem(sys.modules, "an_object", object())
    assert plugin.install().served == ALL
