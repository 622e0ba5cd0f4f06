import pytest

from sidelight.errors import InputError
from sidelight.methods.declare import DECLARATIONS, METHODS, get_method
from sidelight.methods.task import Method


@pytest.mark.parametrize("name", METHODS)
def test_every_name_is_that_of_its_function_and_method(name: str) -> None:
    method = get_method(name)
    assert DECLARATIONS[name].name == method.name == name
    assert isinstance(method, Method)
    assert set(method.relations) <= {"add-or-remove-one", "replace-one"} and method.relations
    assert METHODS[name].__doc__


def test_a_misspelled_name_gets_a_hint() -> None:
    with pytest.raises(InputError, match="'ppsgd'"):
        get_method("ppsdg")
