import pickle

from tidings.domain.errors import Invalid, TidingsError


def test_invalid_says_which_field_and_what_to_change() -> None:
    error = Invalid("at", "add Z")
    assert isinstance(error, TidingsError)
    assert (error.field, error.detail, str(error)) == ("at", "add Z", "at: add Z")


def test_invalid_survives_a_process_boundary() -> None:
    copy = pickle.loads(pickle.dumps(Invalid("every", "write R1")))
    assert (copy.field, copy.detail) == ("every", "write R1")
