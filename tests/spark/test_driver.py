"""Variables for the ranks of one launch, which stand on a name that pyspark does not document."""

from labkit.spark import driver


def test_a_launch_without_the_name_for_torchruns_command(monkeypatch):
    from pyspark.ml.torch.distributor import TorchDistributor

    monkeypatch.delattr(TorchDistributor, "_create_torchrun_command")
    with driver.launch_variables({"LABKIT_TEST": "1"}):
        assert not hasattr(TorchDistributor, "_create_torchrun_command")


def test_only_a_launch_in_the_block_gets_the_variables():
    from pyspark.ml.torch.distributor import TorchDistributor

    about = {"local_mode": True, "num_processes": 2}
    with driver.launch_variables({"LABKIT_TEST": "1"}):
        inside = TorchDistributor._create_torchrun_command(about, "train.py")
    outside = TorchDistributor._create_torchrun_command(about, "train.py")
    assert inside == ["/usr/bin/env", "LABKIT_TEST=1", *outside]
