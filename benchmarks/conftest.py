"""What pytest-benchmark does not note of the machine."""

import torch


def pytest_benchmark_update_machine_info(config, machine_info) -> None:
    machine_info["threads"] = torch.get_num_threads()
