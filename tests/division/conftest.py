import jaxtyping
import pytest


@pytest.fixture
def unchecked():
    """Shapes are not checked at the door, as for users: the function's own errors are seen."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
