import pytest

from kserve_torch.events import Observers, Shed, StateChanged


def test_each_is_told_of_the_kinds_it_asked_for_in_the_order_of_coming():
    told = []
    observers = Observers()
    observers.add(lambda event: told.append(("all", event)))
    observers.add(lambda event: told.append(("states", event)), [StateChanged])
    ready, shed = StateChanged("mnist", "1.0", "READY"), Shed("mnist", "1.0", "queue_full")
    observers.tell(ready)
    observers.tell(shed)
    assert told == [("all", ready), ("states", ready), ("all", shed)]


def test_nobody_can_ask_for_what_never_happens():
    with pytest.raises(KeyError):
        Observers().add(print, [int])
