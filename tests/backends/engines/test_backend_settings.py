"""Parameters of the configuration as settings of ONNX Runtime, without Triton."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.batching.item import RequestError, decode_texts
from backends.machine.cpu_share import cpu_limit, idle_cpu_seconds, usable_cpus
from backends.model_config import FileSignature, FileTensor, ModelConfigError
from backends.onnxruntime import session
from backends.onnxruntime.execution_providers import CPU, CUDA, execution_providers
from backends.onnxruntime.session_settings import (
    SessionSettings,
    own_settings,
    session_settings,
    warn_of_unread,
)
from tests.backends.conftest import cpu_config
from tests.support.models import onnx_models


class TestThreads:
    @pytest.mark.parametrize(
        ("given", "spins"), [({}, "0"), ({"session__intra_op__allow_spinning": "1"}, "1")]
    )
    def test_by_default_they_do_not_spin(self, given: dict[str, str], spins: str) -> None:
        entries = session_settings(cpu_config(2, **given)).session_entries
        assert entries["session.intra_op.allow_spinning"] == spins

    def test_affinity_limits_the_cpus(self, tmp_path: Path) -> None:
        assert usable_cpus(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))

    @pytest.mark.parametrize(
        ("groups", "files", "cpus", "share"),
        [
            ("0::/pod/box", {"pod/cpu.max": "150000 100000"}, 1, 1.5),
            ("0::/pod/box", {"pod/cpu.max": "10000 100000"}, 1, 0.1),
            (
                "0::/pod/box",
                {"pod/cpu.max": "200000 100000", "pod/box/cpu.max": "max 100000"},
                2,
                2.0,
            ),
            (
                "5:memory:/pod\n4:cpu,cpuacct:/pod",
                {"cpu/pod/cpu.cfs_quota_us": "300000", "cpu/pod/cpu.cfs_period_us": "100000"},
                3,
                3.0,
            ),
        ],
        ids=["one and a half", "a tenth", "none of its own", "version one"],
    )
    def test_a_quota_limits_the_cpus(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        groups: str,
        files: dict[str, str],
        cpus: int,
        share: float,
    ) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
        for name, text in {"own": groups, **files}.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"{text}\n")
        assert usable_cpus(tmp_path, tmp_path / "own") == cpus
        assert cpu_limit(tmp_path, tmp_path / "own") == share

    def test_cpus_that_wait_for_a_disk_are_idle_too(self, tmp_path: Path) -> None:
        (tmp_path / "stat").write_text("cpu  9 8 7 600 50 4 3 2 1 0\ncpu0 9 8 7 600 50 4 3 2 1 0\n")
        assert idle_cpu_seconds(tmp_path / "stat") == 650 / os.sysconf("SC_CLK_TCK")
        assert idle_cpu_seconds(tmp_path / "none") == 0


class TestSessionSettings:
    def test_native_spellings(self) -> None:
        given = cpu_config(
            execution_mode="1",
            session__use_device_allocator_for_initializers="1",
            memory__enable_memory_arena_shrinkage="cpu:0",
        )
        given["optimization"] = {"graph": {"level": -1}}
        given["model_operations"] = {"op_library_filename": ["/ops.so"]}
        assert session_settings(given) == SessionSettings(
            intra_op_threads=1,
            graph_level="ORT_ENABLE_BASIC",
            session_entries={
                "session.use_device_allocator_for_initializers": "1",
                "session.intra_op.allow_spinning": "0",
                "session.inter_op.allow_spinning": "0",
            },
            op_libraries=("/ops.so",),
        )
        first, second = warn_of_unread(given)
        assert "'execution_mode'" in first
        assert "'memory.enable_memory_arena_shrinkage'" in second

    @pytest.mark.parametrize(
        ("level", "name"),
        [(0, "ENABLE_ALL"), (1, "ENABLE_EXTENDED"), (2, "DISABLE_ALL"), (-1, "ENABLE_BASIC")],
    )
    def test_graph_levels(self, level: int, name: str) -> None:
        given = {**cpu_config(), "optimization": {"graph": {"level": level}}}
        assert session_settings(given).graph_level == f"ORT_{name}"

    def test_a_bad_value_names_its_key(self) -> None:
        said = "parameter 'session.intra_op.allow_spinning' is 'maybe', but expected is"
        with pytest.raises(ModelConfigError, match=said):
            session_settings(cpu_config(session__intra_op__allow_spinning="maybe"))

    @pytest.mark.parametrize(
        ("given", "key"),
        [
            (cpu_config(session__set_denormal_as_zero="1"), "session.set_denormal_as_zero"),
            ({"optimization": {"graph": {"level": 1}}}, "optimization.graph.level"),
            ({"model_operations": {"op_library_filename": ["x.so"]}}, "op_library_filename"),
            ({"optimization": {"graph": {"level": 0}}}, ""),
            ({"dynamic_batching": {}}, ""),
        ],
    )
    def test_those_that_no_other_engine_knows_are_named(
        self, given: dict[str, Any], key: str
    ) -> None:
        assert own_settings({**cpu_config(2, intra_op_thread_count="2"), **given}) == key

    def test_onnx_runtime_gets_them(self) -> None:
        settings = replace(session_settings(cpu_config()), intra_op_threads=2)
        options = session.session_options(settings)
        assert options.intra_op_num_threads == 2
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


class TestProviders:
    ALL = ("TensorrtExecutionProvider", CUDA, "OpenVINOExecutionProvider", CPU)

    def accelerated(self, kind: str, name: str, **parameters: str) -> dict[str, Any]:
        accelerator = {"name": name, "parameters": parameters}
        field = {f"{kind}_execution_accelerator": [accelerator]}
        return {**cpu_config(), "optimization": {"execution_accelerators": field}}

    @pytest.mark.parametrize(
        ("kind", "device", "available", "expected"),
        [
            ("CPU", 0, ALL, [(CPU, {})]),
            ("GPU", 3, ALL, [(CUDA, {"device_id": "3"}), (CPU, {})]),
            ("AUTO", 0, ALL, [(CUDA, {"device_id": "0"}), (CPU, {})]),
            ("AUTO", 0, [CPU], [(CPU, {})]),
        ],
    )
    def test_an_instance_runs_on_its_device_or_on_what_is_there(
        self, kind: str, device: int, available: list[str], expected: list[Any]
    ) -> None:
        providers, warnings = execution_providers(cpu_config(), kind, device, available)
        assert warnings == []
        assert [name for name, _ in providers] == [name for name, _ in expected]
        assert providers[0][1].items() >= expected[0][1].items()

    def test_a_gpu_instance_needs_cuda(self) -> None:
        with pytest.raises(ModelConfigError, match=r"KIND_GPU, but .* has no CUDA.* only CPUExec"):
            execution_providers(cpu_config(), "GPU", 0, [CPU])

    def test_cuda_takes_its_parameters_and_the_place_of_tensorrt(self) -> None:
        own = {"cudnn_conv_use_max_workspace": "0", "cudnn_conv_algo_search": "EXHAUSTIVE"}
        given = self.accelerated("gpu", "cuda", **own)
        ((_, options), _), _ = execution_providers(given, "GPU", 0, self.ALL)
        assert options == {**own, "device_id": "0"}
        given = self.accelerated("gpu", "tensorrt", precision_mode="FP16")
        providers, (warning,) = execution_providers(given, "GPU", 0, self.ALL)
        assert [provider for provider, _ in providers] == [CUDA, CPU]
        assert "the accelerator 'tensorrt' is left out" in warning
        assert "NVIDIA" in warning

    def test_openvino_is_no_provider_but_an_engine_of_its_own(self) -> None:
        given = self.accelerated("cpu", "openvino")
        assert execution_providers(given, "CPU", 0, self.ALL) == ([(CPU, {})], [])

    @pytest.mark.parametrize(
        ("kind", "expected"), [("cpu", "'openvino'"), ("gpu", "'tensorrt' or 'cuda'")]
    )
    def test_an_unknown_accelerator_is_refused(self, kind: str, expected: str) -> None:
        said = f"{kind.upper()} execution accelerator 'abacus' is unknown, .* is {expected}"
        with pytest.raises(ModelConfigError, match=said):
            execution_providers(self.accelerated(kind, "abacus"), "GPU", 0, self.ALL)


class TestOnnxFile:
    def test_the_signature_is_read_from_the_file(self, tmp_path: Path) -> None:
        """Without an input that has a default in the file, which stays as it is."""
        onnx_models.with_default(tmp_path / "model.onnx")
        assert session.OnnxFile(session.model_file(tmp_path, "")).signature == FileSignature(
            (FileTensor("x", "TYPE_FP32", (3,)),), (FileTensor("y", "TYPE_FP32", (3,)),)
        )

    def test_a_folder_of_the_files_name_holds_the_file(self, tmp_path: Path) -> None:
        onnx_models.words(tmp_path / "big.onnx" / "model.onnx")
        file = session.model_file(tmp_path, "big.onnx")
        assert session.OnnxFile(file).signature.inputs[0] == FileTensor(
            "text", "TYPE_STRING", (-1, -1)
        )

    @pytest.mark.parametrize(
        ("shape", "known"), [(None, False), ([], True), ([3], True), (["n"], True)]
    )
    def test_an_unknown_rank_is_no_scalar(
        self, tmp_path: Path, shape: list[int | str] | None, known: bool
    ) -> None:
        onnx_models.plus_one(tmp_path / "model.onnx", shape)
        signature = session.OnnxFile(tmp_path / "model.onnx").signature
        assert [one.has_rank for one in (*signature.inputs, *signature.outputs)] == [known, known]

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(
            ModelConfigError, match=r"expected at '.*model\.onnx', but there is none"
        ):
            session.model_file(tmp_path, "")

    def test_a_locale_that_is_missing_is_said_with_its_command(self, tmp_path: Path) -> None:
        """The Faroese one, which hardly a machine has."""
        onnx_models.small_letters(tmp_path / "model.onnx", locale="fo_FO.utf8")
        with pytest.raises(ModelConfigError, match="Failed to construct locale") as caught:
            session.OnnxFile(tmp_path / "model.onnx")
        assert "localedef -i" in caught.value.fix

    def test_strings_become_text(self) -> None:
        array = np.array([[b"a", "b"]], dtype=object)
        assert decode_texts("x", array).tolist() == [["a", "b"]]
        with pytest.raises(RequestError, match="element 1 of input 'x'"):
            decode_texts("x", np.array([b"a", b"\xff"], dtype=object))
