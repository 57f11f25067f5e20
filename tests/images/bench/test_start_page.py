"""The benchmark `start` as tables and goals."""

from images.bench import start_page
from images.bench.data import StartData, StartRun

MB = 1_000_000


def ran(side: str, step: float, *, cold: bool = True, loss: float = 2.0, beside: int = 900 * MB) -> StartRun:
    return {
        "side": side,
        "mode": {"cold": cold, "loading": "LAZY"},
        "at": {"torch": step / 2, "first step": step},
        "host_peak": 1500 * MB,
        "gpu_context": 500 * MB,
        "gpu_beside": beside,
        "losses": [loss],
        "load": {"busy": 0.0, "before": 0.0},
    }


def data(*runs: StartRun) -> StartData:
    return {"gpu": "NVIDIA H200", "images": {}, "runs": list(runs)}


def test_medians_of_each_image_in_each_mode() -> None:
    runs = [ran("whole", 10.0), ran("whole", 12.0), ran("whole", 30.0), ran("whole", 5.0, cold=False)]
    text = start_page.section(data(*runs))
    assert "| image | page cache, CUDA_MODULE_LOADING | torch | first step |" in text
    assert "| whole | cold, LAZY | 6.0 | 12.0 |" in text and "| whole | warm, LAZY | 2.5 | 5.0 |" in text
    assert "| whole | cold, LAZY | 1,500 | 500 | 900 |" in text
    assert "(medians of 1, 3)" in text and "NVIDIA H200" in text


def test_losses_must_be_one_value() -> None:
    (same,) = start_page.goals(data(ran("whole", 1.0), ran("pruned", 1.0)))
    (other,) = start_page.goals(data(ran("whole", 1.0), ran("pruned", 1.0, loss=2.1)))
    assert (same.met, other.met, other.measured) == (True, False, "2 different in 2 runs")
