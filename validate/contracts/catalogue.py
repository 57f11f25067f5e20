"""Which contract each claim has: the published schema comes from this table, and recorded runs are held against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from validate.contracts import cpu, device_code, gpu, home, multigpu, profile, provenance, static, system


@dataclass(frozen=True)
class Contract:
    """What a claim expects and what its probe yields. Types are TypedDicts, or unions of them."""

    probe: str
    """`TIER.MODULE`; empty: several probes, each of which a row of the claims' tables names."""
    expect: object
    evidence: object
    ranks: object = None
    """Of several GPUs: what each rank yields."""


_S3 = Contract("static.libraries", static.LibrariesExpect, static.LibrariesEvidence)
_HYGIENE = Contract("static.hygiene", static.HygieneExpect, static.HygieneEvidence)
_COMPARED = Contract("", multigpu.ComparisonsExpect, multigpu.RanksEvidence, multigpu.ComparisonsRank)
_BEHAVIOUR = Contract("", profile.BehaviourExpect, profile.BehaviourEvidence)


def _kernel(probe: str) -> Contract:
    return Contract(probe, gpu.KernelExpect, gpu.KernelEvidence)


def _collectives(expect: object, rank: object) -> Contract:
    return Contract("multigpu.collectives", expect, multigpu.RanksEvidence, rank)


CONTRACTS: Mapping[str, Contract | Mapping[str, Contract]] = {
    "S1": {
        "lock": Contract("static.pins", static.LockExpect, static.LockEvidence),
        "": Contract("static.pins", static.PinExpect, static.PinEvidence),
    },
    "S2": Contract("static.files", static.FilesExpect, static.FilesEvidence),
    "S3": _S3,
    "S4": Contract("static.symbols", static.SymbolsExpect, static.SymbolsEvidence),
    "S5": Contract("static.devicecode", device_code.DeviceCodeExpect, device_code.DeviceCodeEvidence),
    "S6": Contract("static.toolkit", static.ToolkitExpect, static.ToolkitEvidence),
    "S7": Contract("static.environment", static.EnvironmentExpect, static.EnvironmentEvidence),
    "S8": {
        "labels": Contract("host.image", static.LabelsExpect, static.HostImageEvidence),
        "size": Contract("host.image", static.SizeExpect, static.HostImageEvidence),
        "settings": Contract("host.image", static.SettingsExpect, static.HostImageEvidence),
        "history": Contract("host.image", static.HistoryExpect, static.HostImageEvidence),
        **dict.fromkeys(("leftovers", "secrets", "home"), _HYGIENE),
    },
    "S9": {
        "tools": Contract("static.system", system.ToolsExpect, system.ToolsEvidence),
        "verbs": Contract("static.system", system.VerbsExpect, system.VerbsEvidence),
    },
    "S10": {
        **dict.fromkeys(
            ("files", "lookup", "privileges"),
            Contract("static.owners", provenance.OwnersExpect, provenance.OwnersEvidence),
        ),
        "": Contract("static.wheels", provenance.WheelsExpect, provenance.WheelsEvidence),
    },
    "C1": Contract("cpu.imports", cpu.ImportsExpect, cpu.ImportsEvidence),
    "C2": Contract("cpu.native", cpu.NativeExpect, cpu.NativeEvidence),
    "C3": {
        "c-extension": Contract("cpu.compiler", cpu.NothingExpected, cpu.CExtensionEvidence),
        "triton-launcher": Contract("cpu.compiler", cpu.NothingExpected, cpu.LauncherEvidence),
    },
    "C4": Contract("cpu.triton", cpu.TritonExpect, cpu.TritonEvidence),
    "C5": Contract("cpu.compile", cpu.NothingExpected, cpu.CompileEvidence),
    "C6": {
        "numpy": Contract("cpu.bridges", cpu.NothingExpected, cpu.NumpyEvidence),
        "torchvision": Contract("cpu.bridges", cpu.NothingExpected, cpu.TorchvisionEvidence),
    },
    "C7": Contract("cpu.threads", cpu.ThreadsExpect, cpu.ThreadsEvidence),
    "C8": {
        "arbitrary UID": Contract("cpu.arbitrary_uid", cpu.ArbitraryUidExpect, cpu.ArbitraryUidEvidence),
        "": Contract("cpu.home", home.HomeExpect, home.HomeEvidence),
    },
    "C9": Contract("cpu.instructions", cpu.InstructionsExpect, cpu.InstructionsEvidence),
    "C10": {
        "fp32": Contract("cpu.quantized_llama", cpu.NothingExpected, cpu.LogitsEvidence),
        "nf4-weights": Contract("cpu.quantized_llama", cpu.QuantiserExpect, cpu.WeightsEvidence),
        "nf4-logits": Contract("cpu.quantized_llama", cpu.NothingExpected, cpu.LogitsEvidence),
        "lora-step": Contract("cpu.quantized_llama", cpu.NothingExpected, cpu.LoraEvidence),
    },
    "C11": Contract("cpu.additions", home.AdditionsExpect, home.AdditionsEvidence),
    "C12": Contract("cpu.bytecode", cpu.BytecodeExpect, cpu.BytecodeEvidence),
    "G0": Contract("gpu.device", gpu.DeviceExpect, gpu.DeviceEvidence),
    "G1": {"cudnn": Contract("gpu.numerics", cpu.NothingExpected, gpu.CudnnEvidence), "": _kernel("gpu.numerics")},
    "G2": _kernel("gpu.sdpa"),
    "G3": _kernel("gpu.flash_attn"),
    "G4": _kernel("gpu.xformers"),
    "G5": _kernel("gpu.bitsandbytes"),
    "G6": _kernel("gpu.triton"),
    "G7": _kernel("gpu.liger"),
    "G8": _kernel("gpu.compile"),
    "G9": _kernel("gpu.fp8"),
    "G10": {
        "nf4-weights": Contract("gpu.llama", cpu.QuantiserExpect, gpu.GpuWeightsEvidence),
        "nf4-logits": Contract("gpu.llama", cpu.NothingExpected, gpu.GpuLogitsEvidence),
        "qlora": Contract("gpu.llama", cpu.NothingExpected, gpu.QloraEvidence),
    },
    "M1": {
        "collectives": _collectives(multigpu.CollectivesExpect, multigpu.CollectivesRank),
        "settings": _collectives(multigpu.NcclSettingsExpect, multigpu.NcclSettingsRank),
        "nccl": _collectives(multigpu.NcclExpect, multigpu.NcclRank),
        "transport": _collectives(multigpu.TransportExpect, multigpu.TransportRank),
    },
    **dict.fromkeys(("M2", "M3", "M4", "M5", "M8"), _COMPARED),
    "M6": Contract("multigpu.bandwidth", multigpu.BandwidthExpect, multigpu.RanksEvidence, multigpu.BandwidthRank),
    "M7": Contract("multigpu.shared_memory", multigpu.SharedMemoryExpect, multigpu.SharedMemoryEvidence),
    "P1": _BEHAVIOUR,
    "P2": _BEHAVIOUR,
    "P3": _BEHAVIOUR,
}
"""Catalogue number -> contract, or contracts by subject (empty: all others)."""


def contract(number: str, subject: str) -> Contract:
    """Raises KeyError for a claim that the catalogue does not have."""
    found = CONTRACTS[number]
    return found if isinstance(found, Contract) else found[subject] if subject in found else found[""]
