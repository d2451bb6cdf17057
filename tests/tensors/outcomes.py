"""Everything that can be told apart about the outcome of a slice copy, and torch's own form to compare it with."""

import contextlib

import torch

MODES = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def reference(from_tensor, to_tensor, length):
    return to_tensor[:length].copy_(from_tensor[:length], non_blocking=True)


def values(tensor):
    if tensor.device.type == "meta" or type(tensor).__name__ == "FakeTensor" or not has_memory(tensor):
        return None
    with torch.no_grad():
        plain = torch.Tensor.detach(tensor)
        if any(getattr(plain, "names", ())):
            plain = plain.rename(None)
        if plain.layout is not torch.strided:
            plain = plain.to_dense()
        if plain.is_quantized:
            plain = plain.int_repr()
        plain = plain.resolve_conj().resolve_neg()
        return bytes(plain.clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8).tolist())


def has_memory(tensor):
    return tensor.layout is not torch.strided or tensor.untyped_storage().nbytes() > 0


def version(tensor):
    return None if tensor.is_inference() else tensor._version


def said(function):
    """What `function` returns, or says while it refuses."""
    try:
        return function()
    except RuntimeError as error:
        return str(error)


def view_facts(view, source, target):
    facts = {
        "type": type(view),
        "shape": tuple(view.shape),
        "dtype": view.dtype,
        "device": view.device,
        "layout": view.layout,
        "requires_grad": view.requires_grad,
        "grad_fn": said(lambda: type(view.grad_fn).__name__),
        "is_leaf": said(lambda: view.is_leaf),
        "is_inference": view.is_inference(),
        "is_view": view._is_view(),
        "base": "target" if view._base is target else "its base" if view._base is target._base else view._base,
        "conj, neg": (view.is_conj(), view.is_neg()),
        "version": version(view),
        "names": said(lambda: getattr(view, "names", None)),
        "keys": str(torch._C._dispatch_keys(view)),
        "retains_grad": said(lambda: view.retains_grad),
        "grad": said(lambda: view.grad if view.is_leaf else None),
        "dict": sorted(view.__dict__),
    }
    if view.layout is torch.strided:
        facts["stride, offset"] = (view.stride(), view.storage_offset())
        facts["own memory"] = view.untyped_storage()._cdata == target.untyped_storage()._cdata
    if view._is_view():
        facts["creation meta"] = torch._C._autograd._get_creation_meta(view)
    return facts


def later_facts(view, target):
    """What shows only afterwards: shared versions, and whether autograd takes the view for a stale one."""
    facts = {}
    if not target.is_inference() and target.device.type != "meta":
        before = version(target)
        torch._C._autograd._unsafe_set_version_counter((target,), (before + 7,))
        facts["shared version"] = version(view) - before
    if (
        said(lambda: target.is_leaf) is True
        and not target.is_inference()
        and target.dtype.is_floating_point
        and not target._is_view()
    ):
        target.requires_grad_()
        facts["of what requires gradients now"] = said(lambda: (view.requires_grad, type(view.grad_fn).__name__))
    return facts


def outcome(function, make, mode="grad"):
    """Facts about ``function(*make())``: the error, or the result and everything that was changed by it."""
    with MODES[mode]():
        source, target, length = make()
        before = version(target) if isinstance(target, torch.Tensor) else None
        try:
            view = function(source, target, length)
        except Exception as error:
            return {
                "error": (type(error), str(error).splitlines()[0]),
                "target": values(target) if isinstance(target, torch.Tensor) else target,
            }
        facts = {
            "source": values(source),
            "target": values(target),
            "view": values(view),
            "bumped": version(target) and version(target) - before,
        }
        if isinstance(target, torch.Tensor):
            facts |= view_facts(view, source, target)
            facts |= later_facts(view, target)
    return facts
