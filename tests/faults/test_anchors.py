"""Each seeded fault can still be put into the tree."""

import pytest

from tests.faults.seeded import FAULTS, ROOT, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_anchor_is_in_its_file_once(fault: Fault) -> None:
    count = (ROOT / fault.file).read_text(encoding="utf-8").count(fault.before)
    assert count == 1, f"fault {fault.name} ({fault.breaks}): its anchor is {count} times in {fault.file}; renew it"
    assert fault.after != fault.before


def test_faults_are_in_both_languages() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert [sum(fault.file.startswith(folder) for fault in FAULTS) for folder in ("lua/", "glidemq_py/")] == [12, 12]
