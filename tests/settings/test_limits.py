from kserve_torch.settings.limits import Limits, merge


def test_snapshot_beats_yaml_beats_defaults() -> None:
    given = {"max_workers": 5, "batch_size": 2, "max_batch_delay": 5.0, "response_timeout": 120.0}
    yaml = {"batchSize": 8, "startupTimeout": 7, "jobQueueSize": 3}
    limits = merge(Limits(queue_size=10, response_timeout=60), yaml, given)
    assert limits == Limits(
        max_workers=5, batch_size=2, max_batch_delay=5, startup_timeout=7, queue_size=3
    )


def test_every_yaml_key_reaches_its_limit_in_seconds() -> None:
    yaml = {
        "minWorkers": 2,
        "maxWorkers": 4,
        "batchSize": 8,
        "maxBatchDelay": 50,
        "responseTimeout": 30,
        "startupTimeout": 40,
        "jobQueueSize": 5,
        "clientTimeoutInMills": 1500,
        "maxRetryTimeoutInSec": 60,
        "deviceType": "gpu",
        "deviceIds": [0, 2],
        "v2_rows": "batch",
        "v2_flatten": True,
        "v2_grpc_bytes": "b64",
        "handler": {"anything": 1},
    }
    assert merge(Limits(), yaml, {}) == Limits(
        min_workers=2,
        max_workers=4,
        batch_size=8,
        max_batch_delay=0.05,
        response_timeout=30,
        startup_timeout=40,
        queue_size=5,
        client_timeout=1.5,
        max_retry_timeout=60,
        device_type="gpu",
        device_ids=(0, 2),
        v2_rows="batch",
        v2_flatten=True,
        v2_grpc_bytes="b64",
    )


def test_whole_numbers_may_be_floats() -> None:
    yaml = {"jobQueueSize": 1e6, "minWorkers": 2.0}
    limits = merge(Limits(), yaml, {})
    assert (repr(limits.queue_size), repr(limits.min_workers)) == ("1000000", "2")


def test_words_are_in_any_case() -> None:
    assert merge(Limits(), {"deviceType": "CPU"}, {}, gpus=2) == Limits(device_type="cpu")


def test_more_workers_at_least_means_more_at_most() -> None:
    limits = merge(Limits(), {"minWorkers": 3}, {})
    assert (limits.min_workers, limits.max_workers) == (3, 3)


def test_one_worker_is_enough() -> None:
    assert merge(Limits(min_workers=2), {"minWorkers": 1}, {}).min_workers == 1


def test_no_client_timeout_is_none() -> None:
    assert merge(Limits(), {"clientTimeoutInMills": 0}, {}).client_timeout is None
