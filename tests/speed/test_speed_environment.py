"""The GPU's state from nvidia-smi's lines, and the lock of a device."""

from __future__ import annotations

import select
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from grader.errors import InfrastructureError
from grader.judge.speed import environment
from grader.sandbox import device_lock as lock

H200 = "1980, 3201, 692.45, 700.00, 61, Enabled, 0x0000000000000004"


def test_sample_reads_clocks_power_temperature_and_reasons() -> None:
    assert environment.sample("GPU-1", lambda gpu, fields: H200) == {
        "sm_mhz": 1980.0,
        "memory_mhz": 3201.0,
        "power_w": 692.45,
        "power_limit_w": 700.0,
        "temperature_c": 61.0,
        "persistence": "Enabled",
        "throttle_reasons": "power cap",
    }


def test_sample_asks_an_older_driver_by_its_own_names() -> None:
    def query(gpu: str, fields: tuple[str, ...]) -> str | None:
        return None if "clocks_event_reasons.active" in fields else H200

    assert environment.sample("0", query)["throttle_reasons"] == "power cap"


@pytest.mark.parametrize("line", [None, "", "1980, 3201"])
def test_sample_without_an_answer_is_empty(line: str | None) -> None:
    assert environment.sample("0", lambda gpu, fields: line) == {}


def test_sample_leaves_out_what_a_card_does_not_tell() -> None:
    line = "1980, 3201, [N/A], [Not Supported], 61, Disabled, 0x0"
    found = environment.sample("0", lambda gpu, fields: line)
    assert "power_w" not in found
    assert found["throttle_reasons"] == "none"


def test_reasons_names_every_bit() -> None:
    assert environment.reasons(0x44) == "power cap, hardware thermal"


def test_before_and_after_keeps_what_did_not_change_once() -> None:
    table = environment.before_and_after({"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 3.0, "c": 4.0})
    assert table == {"a": 1.0, "b_before": 2.0, "b_after": 3.0, "c_before": None, "c_after": 4.0}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setattr(lock, "SHARED", tmp_path)
    return "GPU-5f/../x"


def held_elsewhere(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until its stdin ends."""
    program = f"""
        import sys, filelock
        with filelock.FileLock({str(path)!r}):
            print("held", flush=True)
            sys.stdin.read()
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_device_lock_of_another_process_is_waited_for_and_named(device: str) -> None:
    path = lock.lock_path(device)
    path.parent.mkdir()
    with held_elsewhere(path) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InfrastructureError, match="Another timed job"), lock.device_lock(device, wait_s=0.1):
            pass
        other.stdin.close()
        with lock.device_lock(device, wait_s=20.0):
            pass


def test_device_lock_may_be_asked_for_again_by_its_holder(device: str) -> None:
    with lock.device_lock(device, wait_s=0.1), lock.device_lock(device, wait_s=0.1):
        assert lock.lock_path(device).stat().st_mode & 0o666 == 0o666


SHARING = """
import sys
from pathlib import Path
from grader.sandbox import device_lock as lock
lock.SHARED = Path(sys.argv[1])
with lock.device_shared(sys.argv[2]):
    print("shares", flush=True)
    sys.stdin.read()
"""


def test_device_is_shared_by_those_who_compute_and_theirs_alone_who_time(device: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHARING, str(tmp_path), device]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "shares\n"
        with lock.device_shared(device, wait_s=5.0):
            pass
        with pytest.raises(InfrastructureError, match="Another timed job"), lock.device_lock(device, wait_s=0.1):
            pass
        other.stdin.close()
        other.wait()
    with (
        lock.device_lock(device, wait_s=5.0),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other,
    ):
        assert other.stdout is not None
        with lock.device_shared(device, wait_s=0.1):  # the one who times computes too
            assert not select.select([other.stdout], [], [], 2.0)[0]
        other.kill()


def test_lock_path_stays_in_its_folder_whatever_the_name(device: str) -> None:
    path = lock.lock_path(device)
    assert path.parent.name == lock.FOLDER
    assert path.name == "GPU-5f____x.lock"


def test_device_lock_that_cannot_be_made_says_where(device: str, tmp_path: Path) -> None:
    (tmp_path / lock.FOLDER).write_text("a file where the folder should be")
    with pytest.raises(InfrastructureError, match="can't be taken at"), lock.device_lock(device):
        pass


def test_lock_path_is_the_same_whatever_the_folder_for_temporary_files(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of a scheduler that share a card have a TMPDIR each."""
    found = set()
    for job in ("job 1", "job 2"):
        monkeypatch.setattr(lock.tempfile, "tempdir", str(tmp_path / job))
        found.add(lock.lock_path(device))
    assert found == {tmp_path / lock.FOLDER / "GPU-5f____x.lock"}


def test_lock_path_without_a_shared_folder_is_among_temporary_files(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "SHARED", tmp_path / "nowhere")
    monkeypatch.setattr(lock.tempfile, "tempdir", str(tmp_path))
    assert lock.lock_path(device) == tmp_path / lock.FOLDER / "GPU-5f____x.lock"
