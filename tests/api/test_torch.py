"""gradclip.torch compared with torch.nn.utils: signatures, effects and errors, and the intended differences."""

import inspect
import itertools
import math

import gradclip as gc
import ml_dtypes
import numpy as np
import oracle
import pytest
import ranks

pytestmark = pytest.mark.torch

try:
    import gradclip.torch as ours
    import torch
    from torch.nn import utils as theirs
except ImportError:  # then these tests are not collected
    DTYPES = []
else:
    DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]

FUNCTIONS = ["clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"]
TOLERANCE = {"torch.float16": 2e-3, "torch.bfloat16": 2e-2, "torch.float64": 1e-6}
LAYOUTS = [
    lambda t: t,
    lambda t: t.mT.contiguous().mT,
    lambda t: torch.cat([t, t], dim=1)[:, ::2],
    lambda t: t.flip(0),
    lambda t: torch.cat([t, t], dim=1)[:, 3 : 3 + t.shape[1]],
]


def parameters(dtype, *, seed=0, layout=0):
    """Some parameters with gradients, one without."""
    torch.manual_seed(seed)
    made = []
    for shape in ((5, 7), (3, 4), (1, 9)):
        parameter = torch.nn.Parameter(torch.zeros(shape, dtype=dtype))
        parameter.grad = LAYOUTS[layout](
            torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else None).to(dtype)
        )
        made.append(parameter)
    return [made[0], torch.nn.Parameter(torch.zeros(3, dtype=dtype)), *made[1:]]


def gradients(made):
    return [p.grad.clone() for p in made if p.grad is not None]


def array_of(tensor):
    """The memory of a tensor as an array. torch makes none of bfloat16."""
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def close(a, b, dtype):
    tolerance = TOLERANCE.get(str(dtype), 1e-5)
    return all(torch.allclose(x, y, rtol=tolerance, atol=tolerance * 1e-3) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_those_of_torch(name):
    mine, other = (inspect.signature(getattr(module, name)).parameters.values() for module in (ours, theirs))
    assert [(p.name, p.default, p.kind) for p in mine] == [(p.name, p.default, p.kind) for p in other]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("norm_type", [2.0, 1, 3.0, math.inf, "inf", 0.5])
@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_norms_are_clipped_as_by_torch(dtype, norm_type, layout):
    mine, other = parameters(dtype, layout=layout), parameters(dtype, layout=layout)
    before = gradients(mine)
    norm, expected = (m.clip_grad_norm_(p, 1.5, norm_type) for m, p in ((ours, mine), (theirs, other)))
    is_double = dtype in (torch.float64, torch.complex128)
    assert norm.dtype == (torch.float64 if is_double else torch.float32)
    assert norm.shape == ()
    assert float(norm) == pytest.approx(float(expected), rel=TOLERANCE.get(str(dtype), 1e-5))
    assert close(gradients(mine), gradients(other), dtype)
    # ... and has the bits of the functions of arrays.
    arrays, exact = gc.clip_by_global_norm([array_of(g) for g in before], 1.5, ord=float(norm_type))
    assert float(norm) == (exact if is_double else np.float32(exact))
    assert all(oracle.same_bits(array_of(g), a) for g, a in zip(gradients(mine), arrays, strict=True))


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_values_are_clipped_as_by_torch(dtype, layout):
    mine, other = parameters(dtype, layout=layout), parameters(dtype, layout=layout)
    ours.clip_grad_value_(mine, 0.5)
    theirs.clip_grad_value_(other, 0.5)
    assert all(map(torch.equal, gradients(mine), gradients(other)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_two_halves_are_the_whole(dtype):
    whole, halves = parameters(dtype), parameters(dtype)
    norm = ours.get_total_norm(gradients(halves))
    assert ours.clip_grads_with_norm_(halves, 1.5, norm) is None
    assert torch.equal(ours.clip_grad_norm_(whole, 1.5), norm)
    assert close(gradients(whole), gradients(halves), dtype)


@pytest.mark.parametrize("name", FUNCTIONS[:3])
def test_within_the_limit_nothing_is_written(name):
    made = parameters(torch.float32)
    before, versions = gradients(made), [p.grad._version for p in made if p.grad is not None]  # noqa: SLF001
    if name == "clip_grad_value_":
        ours.clip_grad_value_(made, 100)
    elif name == "clip_grad_norm_":
        ours.clip_grad_norm_(made, 100)
    else:
        ours.clip_grads_with_norm_(made, 100, torch.tensor(99.0))
    assert all(map(torch.equal, gradients(made), before))
    if name != "clip_grad_value_":
        assert [p.grad._version for p in made if p.grad is not None] == versions  # noqa: SLF001


@pytest.mark.parametrize("name", FUNCTIONS[:3])
def test_autograd_learns_of_the_change(name):
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    square = torch.ones(2, requires_grad=True) * parameter.grad  # which saves the gradient for its backward
    arguments = {
        "clip_grad_norm_": (1.0,),
        "clip_grad_value_": (1.0,),
        "clip_grads_with_norm_": (1.0, torch.tensor(5.0)),
    }
    getattr(ours, name)(parameter, *arguments[name])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()


def test_gradients_of_gradients_are_clipped():
    parameter = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    (parameter.grad,) = torch.autograd.grad(parameter.square().sum() / 2, parameter, create_graph=True)
    assert parameter.grad.requires_grad
    assert float(ours.clip_grad_norm_(parameter, 1.0)) == 5
    assert torch.allclose(parameter.grad, torch.tensor([0.6, 0.8]))


def test_a_tensor_an_iterator_and_nothing_are_taken():
    made = parameters(torch.float32)
    assert torch.equal(ours.clip_grad_norm_(iter(made), 1e9), ours.get_total_norm(gradients(made)))
    assert torch.equal(ours.clip_grad_norm_(made[0], 1e9), ours.get_total_norm(made[0].grad))
    for empty in ([], [torch.nn.Parameter(torch.zeros(2))]):
        assert torch.equal(ours.clip_grad_norm_(empty, 1.0), torch.tensor(0.0))
        ours.clip_grad_value_(empty, 1.0)
    with pytest.warns(UserWarning, match="empty generator") as mine:
        ours.clip_grad_norm_((p for p in ()), 1.0)
    with pytest.warns(UserWarning, match="empty generator") as other:
        theirs.clip_grad_norm_((p for p in ()), 1.0)
    assert str(mine[0].message) == str(other[0].message)
    assert mine[0].filename == other[0].filename == __file__


def test_norms_are_on_the_cpu_whatever_the_default_device_is():
    made = parameters(torch.float32)
    expected = ours.get_total_norm(gradients(made))
    with torch.device("meta"):
        norms = [ours.clip_grad_norm_(made, 1e9), ours.get_total_norm(gradients(made))]
    assert all(torch.equal(norm, expected) for norm in norms)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_norms_that_are_not_finite(bad):
    made = parameters(torch.float32)
    made[0].grad[0, 0] = bad
    before = gradients(made)
    messages = []
    for module, name in itertools.product((ours, theirs), ("clip_grad_norm_", "get_total_norm")):
        arguments = (made, 1.0) if name == "clip_grad_norm_" else (gradients(made),)
        with pytest.raises(RuntimeError) as caught:
            getattr(module, name)(*arguments, norm_type=2.0, error_if_nonfinite=True)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1
    assert all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(gradients(made), before, strict=True)
    )
    norm = ours.clip_grad_norm_(made, math.inf)  # asks for the norm alone
    assert not math.isfinite(norm)
    assert all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(gradients(made), before, strict=True)
    )
    ours.clip_grad_norm_(made, 1.0)
    assert all(gradient.isnan().all() for gradient in gradients(made))


def test_what_overflows_in_torch_is_clipped():
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 3e38)
    norm = ours.clip_grad_norm_(parameter, 1.0, error_if_nonfinite=True)  # 6e38 is finite, float32 has no such number
    assert norm == math.inf
    assert torch.allclose(parameter.grad, torch.full((4,), 0.5))
    # The float32 is all that the second of the two halves gets.
    parameter.grad = torch.full((4,), 3e38)
    norm = ours.get_total_norm(parameter.grad, error_if_nonfinite=True)
    assert norm == math.inf
    ours.clip_grads_with_norm_(parameter, 1.0, norm)
    assert parameter.grad.isnan().all()


def test_a_norm_beyond_float64_is_no_error():
    parameter = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    parameter.grad = torch.full((4,), 1.5e308, dtype=torch.float64)
    ours.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)
    torch.testing.assert_close(parameter.grad, torch.full((4,), 0.5, dtype=torch.float64))
    parameter.grad[1] = torch.inf
    with pytest.raises(RuntimeError, match="non-finite"):
        ours.clip_grad_norm_([parameter], 1.0, error_if_nonfinite=True)


def test_tied_parameters_count_once():
    parameter = torch.nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([3.0, 4.0])
    assert float(ours.clip_grad_norm_([parameter, parameter], 1.0)) == 5
    assert torch.allclose(parameter.grad, torch.tensor([0.6, 0.8]))


def test_views_of_one_gradient_count_once():
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    a.grad = torch.tensor([3.0, 4.0])
    b.grad = a.grad.view(2)
    assert float(ours.clip_grad_norm_([a, b], 1.0)) == 5
    assert torch.allclose(b.grad, torch.tensor([0.6, 0.8]))
    ours.clip_grads_with_norm_([a, b], 0.5, torch.tensor(1.0))
    assert torch.allclose(b.grad, torch.tensor([0.3, 0.4]))
    ours.clip_grad_value_([a, b], 0.35)
    assert torch.allclose(b.grad, torch.tensor([0.3, 0.35]))


@pytest.mark.parametrize("view", [lambda g: g.t(), lambda g: g.view(4), lambda g: g[0]], ids=["t", "view", "row"])
@pytest.mark.parametrize("name", FUNCTIONS[:3])
def test_different_views_of_one_gradient_are_torchs(view, name):
    found = []
    for module in (ours, theirs):
        gradient = torch.tensor([[3.0, 4.0], [1.0, 2.0]])
        made = [torch.nn.Parameter(torch.zeros_like(g)) for g in (gradient, view(gradient))]
        made[0].grad, made[1].grad = gradient, view(gradient)
        total = (torch.tensor(5.0),) if name == "clip_grads_with_norm_" else ()
        found.append((getattr(module, name)(made, 1.5, *total), gradient.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", FUNCTIONS[:3])
def test_inference_tensors_are_written_in_inference_mode_alone(name):
    parameter = torch.nn.Parameter(torch.zeros(2))
    with torch.inference_mode():
        parameter.grad = torch.tensor([3.0, 4.0])
    arguments = (parameter, 0.5, torch.tensor(5.0)) if name == "clip_grads_with_norm_" else (parameter, 0.5)
    messages = []
    for module in (ours, theirs):
        with pytest.raises(RuntimeError) as caught:
            getattr(module, name)(*arguments)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert float(ours.get_total_norm(parameter.grad)) > 0  # which writes nothing
    with torch.inference_mode():
        getattr(ours, name)(*arguments)
        assert parameter.grad.norm() <= 0.5 * 2**0.5


def test_empty_gradients_share_no_memory():
    made = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((0,), (0, 3), (2,))]
    for parameter in made:
        parameter.grad = torch.full_like(parameter, 3e38)
    assert ours.clip_grad_norm_(made, 1.0) == math.inf
    assert torch.allclose(made[2].grad, torch.full((2,), 0.5**0.5))  # torch would make zeros


def test_nothing_is_written_if_a_later_gradient_cannot_be():
    a, b = torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(3))
    a.grad, b.grad = torch.tensor([5.0, -5.0]), torch.tensor([7.0]).expand(3)
    for call in (ours.clip_grad_value_, ours.clip_grad_norm_):
        with pytest.raises(ValueError, match=rf"^{call.__name__}: gradients\[1\]: found an array whose own elements"):
            call([a, b], 1.0)
        assert a.grad.tolist() == [5.0, -5.0]


@pytest.mark.parametrize("foreach", [False, True])
def test_foreach_changes_nothing(foreach):
    found = []
    for more in ({}, {"foreach": foreach}):
        made = parameters(torch.float32)
        norms = [ours.get_total_norm(gradients(made), **more), ours.clip_grad_norm_(made, 1.5, **more)]
        ours.clip_grads_with_norm_(made, 1.0, torch.tensor(1.5), **more)
        ours.clip_grad_value_(made, 0.1, **more)
        found.append([*norms, *gradients(made)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_gradient_of_another_kind_makes_the_whole_call_torchs(name, place, foreach, monkeypatch):
    class Subclass(torch.Tensor):
        pass

    seen = []
    monkeypatch.setattr(theirs, name, lambda *arguments: seen.append(arguments))
    more = {
        "clip_grad_norm_": (1.5, 3.0, True, foreach),
        "clip_grad_value_": (1.5, foreach),
        "clip_grads_with_norm_": (1.5, torch.tensor(9.0), foreach),
        "get_total_norm": (3.0, True, foreach),
    }[name]
    ordinary = [torch.full((2,), 3.0), torch.full((3,), 4.0)]
    for other in (
        torch.ones(2).as_subclass(Subclass),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
    ):
        made = [*ordinary[:place], other, *ordinary[place:]]
        if name != "get_total_norm":
            for i, gradient in enumerate(made):
                made[i] = torch.nn.Parameter(torch.zeros_like(gradient))
                made[i].grad = gradient
        assert getattr(ours, name)(iter(made), *more) is None
        ((found, *arguments),) = seen
        assert all(a is b for a, b in zip(found, made, strict=True))
        assert all(a is b for a, b in zip(arguments, more, strict=True))
        seen.clear()
    assert [gradient.tolist() for gradient in ordinary] == [[3.0] * 2, [4.0] * 3]


def test_a_norm_of_order_0_is_torchs():
    assert float(ours.clip_grad_norm_(parameters(torch.float32), 1.0, 0.0)) == 3.0  # tensors, none of zeros


def test_gradients_of_several_dtypes_have_one_norm():
    made = [torch.nn.Parameter(torch.zeros(1, dtype=dtype)) for dtype in DTYPES[:3]]
    for parameter, value in zip(made, (3.0, 4.0, 12.0), strict=True):
        parameter.grad = torch.full_like(parameter, value)
    assert float(ours.clip_grad_norm_(made, 6.5)) == 13.0
    assert [float(parameter.grad) for parameter in made] == [1.5, 2.0, 6.0]


def test_dtypes_that_gradclip_lacks_are_torchs():
    tensors = [torch.ones(4, dtype=torch.float8_e5m2)]
    errors = []
    for module in (ours, theirs):
        with pytest.raises(NotImplementedError) as caught:
            module.get_total_norm(tensors)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("bad", [-1.0, math.nan])
def test_limits_that_are_none_are_refused(bad):
    made = parameters(torch.float32)
    before = gradients(made)
    for call, what in (
        (lambda: ours.clip_grad_norm_(made, bad), "clip_grad_norm_: max_norm"),
        (lambda: ours.clip_grads_with_norm_(made, bad, torch.tensor(1.0)), "clip_grads_with_norm_: max_norm"),
        (lambda: ours.clip_grad_value_(made, bad), "clip_grad_value_: clip_value"),
    ):
        with pytest.raises(ValueError, match=f"{what}: found {bad}; allowed: a number of at least 0"):
            call()
    assert all(map(torch.equal, gradients(made), before))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: ours.clip_grad_norm_(p, "x"), ValueError, "clip_grad_norm_: max_norm: found str 'x'"),
        (lambda p: ours.clip_grad_norm_(p, None), TypeError, "clip_grad_norm_: max_norm: found None"),
        (lambda p: ours.clip_grad_value_(p, "x"), ValueError, "clip_grad_value_: clip_value: found str 'x'"),
        (
            lambda p: ours.clip_grad_norm_(p, torch.ones(2)),
            ValueError,
            "clip_grad_norm_: max_norm: found a tensor of shape (2,); allowed: a number of at least 0",
        ),
        (
            lambda p: ours.clip_grad_norm_(p, 1.0, "x"),
            ValueError,
            "clip_grad_norm_: norm_type: found str 'x'; allowed: a",
        ),
        (lambda p: ours.get_total_norm(p, None), TypeError, "get_total_norm: norm_type: found None; allowed: a number"),
        (
            lambda p: ours.clip_grads_with_norm_(p, 1.0, torch.tensor(-1.0)),
            ValueError,
            "clip_grads_with_norm_: total_norm: found -1.0; allowed: a number of at least 0 or NaN",
        ),
        (
            lambda p: ours.clip_grads_with_norm_(p, 1.0, None),
            TypeError,
            "clip_grads_with_norm_: total_norm: found None; allowed: a number of at least 0 or NaN",
        ),
    ],
)
def test_errors_name_the_function_and_the_argument(call, error, message):
    made = parameters(torch.float32)
    before = gradients(made)
    with pytest.raises(error) as caught:
        call(made)
    assert str(caught.value).startswith(message)
    assert all(map(torch.equal, gradients(made), before))


def test_limits_and_norms_may_be_tensors_that_require_gradients():
    mine, other = parameters(torch.float32), parameters(torch.float32)
    limit, norm = (torch.tensor(x, requires_grad=True) for x in (0.5, 2.0))
    ours.clip_grad_norm_(mine, limit)  # without a warning
    ours.clip_grad_norm_(other, 0.5)
    assert all(map(torch.equal, gradients(mine), gradients(other)))
    ours.clip_grads_with_norm_(mine, limit, norm)
    ours.clip_grads_with_norm_(other, 0.5, 2.0)
    assert all(map(torch.equal, gradients(mine), gradients(other)))


def test_a_norm_that_is_nan_is_taken():
    made = parameters(torch.float32)
    ours.clip_grads_with_norm_(made, 1.0, torch.tensor(math.nan))
    assert all(gradient.isnan().all() for gradient in gradients(made))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", DTYPES[1:3], ids=str)
def test_torch_compile_leaves_the_functions_out(name, dtype):
    def step(model, x):
        model.zero_grad()
        model(x).sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        arguments = {
            "clip_grad_norm_": (model.parameters(), 1.0),
            "clip_grad_value_": (model.parameters(), 1.0),
            "clip_grads_with_norm_": (model.parameters(), 1.0, torch.tensor(2.0)),
            "get_total_norm": (gradients,),
        }
        found = getattr(ours, name)(*arguments[name])
        return found, [gradient + 1 for gradient in gradients]

    model, x = torch.nn.Linear(3, 2, dtype=dtype), torch.full((4, 3), 5, dtype=dtype)
    torch.compiler.reset()
    (found, after), (expected, expected_after) = torch.compile(step, backend="eager")(model, x), step(model, x)
    assert found == expected
    assert all(map(torch.equal, after, expected_after))


@pytest.mark.parametrize("dtype", DTYPES[1:3])
def test_torch_compile_of_the_function_itself_leaves_it_out(dtype):
    weight = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
    weight.grad = torch.tensor([3.0, 4.0], dtype=dtype)
    torch.compiler.reset()
    assert torch.compile(ours.clip_grad_norm_, backend="eager", fullgraph=False)([weight], 1.0) == 5
    assert torch.equal(weight.grad, torch.tensor([0.6, 0.8], dtype=dtype))


def test_tensors_without_memory_are_torchs():
    # Their `numpy()` returns arbitrary bytes.
    def step(x):
        weight = torch.nn.Parameter(torch.zeros(2))
        weight.grad = x * 1
        return ours.get_total_norm([x]), ours.clip_grad_norm_([weight], 1.0), weight.grad * 1

    total, norm, clipped = torch.func.functionalize(step)(torch.tensor([3.0, 4.0]))
    assert (total, norm) == (5, 5)
    assert torch.allclose(clipped, torch.tensor([0.6, 0.8]))


def test_training_goes_as_with_torch():
    losses = []
    for module in (ours, theirs):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(64, 8)
        y = x.sum(dim=1, keepdim=True).sin() * 5
        found = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            module.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            found.append(float(loss.detach()))
        losses.append(found)
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_tensors_of_the_other_functions():
    """A tensor has a method `values`, as `IndexedSlices` have an attribute."""
    t = torch.tensor([[3.0, 0.3], [4.0, 0.4]])
    expected = gc.clip_by_norm(np.concatenate([t, t]), 1.0, 0)[:2]
    for found in ranks.run([lambda comm: gc.clip_by_norm(t, 1.0, 0, comm=comm)] * 2):
        np.testing.assert_array_equal(found, expected)
    bad = torch.tensor([1.0, float("nan")])
    with pytest.raises(gc.NonFiniteError, match=r"t: 1 NaN of 2 elements, the first at \(1,\)"):
        gc.clip_by_norm(bad, 1.0, nonfinite="raise")
    for error in ranks.run([lambda comm: gc.clip_by_norm(bad, 1.0, nonfinite="raise", comm=comm)] * 2):
        assert isinstance(error, gc.NonFiniteError)
