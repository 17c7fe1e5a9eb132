"""Training a head for a tiny model: the stages resume, the head learns, and what is written can be read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from starsd_edge.errors import UsageError  # noqa: E402
from starsd_edge.text.chat import ChatFrame  # noqa: E402
from starsd_export.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from starsd_export.draft_heads.trained import HEAD_TENSORS, read_trained  # noqa: E402
from starsd_export.training.learning import LossWeights  # noqa: E402
from starsd_export.training.loop import Evaluation, TrainingPlan  # noqa: E402
from starsd_export.training.pipeline import (  # noqa: E402
    PLOT_NAME,
    HeadPlan,
    train_head,
)
from starsd_export.training.texts import TrainingText, Writer, WritingPlan, write_texts  # noqa: E402
from tests.support.tiny_llama import write_safetensors  # noqa: E402


class InterruptedRunError(Exception):
    """What the tests end a run with."""


class Watcher:
    """Remembers reports; ends the run after so many updates."""

    def __init__(self, until: int | None = None) -> None:
        self.reports: list[Evaluation] = []
        self._until = until
        self._stage = ""

    def stage(self, name: str, total: int) -> None:
        self._stage = name

    def done(self, count: int) -> None:
        if self._stage == "training" and count == self._until:
            raise InterruptedRunError

    def report(self, report: Evaluation) -> None:
        self.reports.append(report)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(write_safetensors(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def plan(tmp_path: Path) -> HeadPlan:
    words = ["the", "hub", "drafts", "and", "the", "target", "checks", "what", "it", "drafts;"]
    text = " ".join(words[(i * i) % len(words)] for i in range(1500))
    (tmp_path / "data.txt").write_text(text)
    training = TrainingPlan(
        epochs=6, batch_tokens=512, warmup=4, held_out=0.2, every=5, learning_rate=5e-3, loss=LossWeights(steps=3)
    )
    return HeadPlan(data=(tmp_path / "data.txt",), draft_vocabulary=100, training=training)


def test_an_interrupted_training_ends_with_the_same_head(
    checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path
) -> None:
    whole = train_head(checkpoint, tmp_path / "one", tmp_path / "a", plan, Watcher())
    with pytest.raises(InterruptedRunError):
        train_head(checkpoint, tmp_path / "two", tmp_path / "b", plan, Watcher(until=12))
    resumed = train_head(checkpoint, tmp_path / "two", tmp_path / "b", plan, Watcher())
    for name, tensor in whole.tensors.items():
        torch.testing.assert_close(resumed.tensors[name], tensor, rtol=1e-4, atol=1e-5)


def test_the_head_learns_and_what_is_written_is_what_was_trained(
    checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path
) -> None:
    watcher = Watcher()
    trained = train_head(checkpoint, tmp_path / "work", tmp_path / "head", plan, watcher)
    assert watcher.reports[-1].loss < 0.8 * watcher.reports[0].loss
    assert watcher.reports[-1].update == watcher.reports[-1].updates
    read = read_trained(tmp_path / "head")
    assert read.record == trained.record
    assert torch.equal(read.draft_ids, trained.draft_ids)
    assert len(read.draft_ids) == 100
    for name, tensor in trained.tensors.items():
        torch.testing.assert_close(read.tensors[name], tensor, rtol=1e-3, atol=1e-4)
    assert "tokens per round" in (tmp_path / "head" / PLOT_NAME).read_text()


def test_a_working_directory_of_another_plan_is_refused(checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRunError):
        train_head(checkpoint, tmp_path / "work", tmp_path / "head", plan, Watcher(until=1))
    other = replace(plan, draft_vocabulary=50)
    with pytest.raises(UsageError, match="another plan"):
        train_head(checkpoint, tmp_path / "work", tmp_path / "head", other, Watcher())


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_what_is_no_head_is_never_replaced(checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path, kind: str) -> None:
    output = tmp_path / "precious"
    letter = output if kind == "file" else output / "letter"
    letter.parent.mkdir(exist_ok=True)
    letter.write_text("dear")
    with pytest.raises(UsageError, match="is a file" if kind == "file" else "holds files and no head"):
        train_head(checkpoint, tmp_path / "work", output, plan, Watcher())
    assert letter.read_text() == "dear"
    assert not (tmp_path / "work").exists()


def test_data_that_cannot_be_read_leaves_nothing(checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        train_head(
            checkpoint, tmp_path / "work", tmp_path / "head", replace(plan, data=(tmp_path / "missing",)), Watcher()
        )
    assert not (tmp_path / "work").exists()


def test_messages_beside_data_are_refused_and_leave_nothing(
    checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="leave one out"):
        train_head(
            checkpoint, tmp_path / "work", tmp_path / "head", replace(plan, messages=tmp_path / "asked"), Watcher()
        )
    assert not (tmp_path / "work").exists()


def test_a_head_with_a_tensor_missing_is_refused_by_its_name(
    checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    short = replace(plan, training=replace(plan.training, epochs=1))
    train_head(checkpoint, tmp_path / "work", tmp_path / "head", short, Watcher())
    tensors = load_file(tmp_path / "head" / HEAD_TENSORS)
    del tensors["fc.weight"]
    save_file(tensors, tmp_path / "head" / HEAD_TENSORS)
    with pytest.raises(UsageError, match=r"fc\.weight"):
        read_trained(tmp_path / "head")


def test_without_text_or_template_the_command_says_what_it_needs(checkpoint: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--data"):
        train_head(checkpoint, tmp_path / "work", tmp_path / "head", HeadPlan(), Watcher())


def test_a_head_that_is_trained_on_keeps_what_it_knows_and_may_guess_other_tokens(
    checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path
) -> None:
    first = Watcher()
    before = train_head(checkpoint, tmp_path / "work", tmp_path / "head", plan, first)
    short = replace(plan, draft_vocabulary=50, start=str(tmp_path / "head"))
    second = Watcher()
    after = train_head(checkpoint, tmp_path / "more", tmp_path / "better", short, second)
    assert (len(before.draft_ids), len(after.draft_ids)) == (100, 50)
    assert after.record.spec.draft_vocab_size == 50
    assert second.reports[0].loss < 0.9 * first.reports[0].loss
    assert after.record.trained["start"] == "head", "a head tells nothing of the machine that it was trained on"


def test_a_head_that_is_not_there_cannot_be_trained_on(checkpoint: Checkpoint, plan: HeadPlan, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no head at"):
        train_head(
            checkpoint, tmp_path / "work", tmp_path / "head", replace(plan, start=str(tmp_path / "none")), Watcher()
        )
    assert not (tmp_path / "work").exists()


def test_given_messages_are_answered_in_turn_and_none_is_made_up(checkpoint: Checkpoint) -> None:
    messages = [[20, 21, 22], [30, 31], [40, 41, 42, 43]]
    frame = ChatFrame([5, 6], [7])
    writer = Writer(checkpoint.load(), frame, [2], WritingPlan(batch=4, answer_tokens=12), messages)
    texts = [*writer.write_batch(0), *writer.write_batch(1)]
    asked = [[5, 6, *message, 7] for message in messages]
    assert len(texts) > 4
    for text in texts:
        assert any(text.ids[: len(prompt)] == prompt and len(text.ids) > len(prompt) for prompt in asked)
    assert {tuple(text.ids[2:4]) for text in texts} == {(20, 21), (30, 31), (40, 41)}


def test_a_batch_in_which_the_model_asks_nothing_has_no_texts(checkpoint: Checkpoint) -> None:
    writer = Writer(checkpoint.load(), ChatFrame([5, 6], [7]), [2], WritingPlan(batch=2, message_tokens=1))
    assert writer.write_batch(0) == []


def test_texts_go_on_where_a_run_was_cut_off(tmp_path: Path) -> None:
    def writer(number: int) -> list[TrainingText]:
        return [TrainingText([number, number + 1, number + 2], 1)] * 2

    path = tmp_path / "texts.jsonl"
    whole = write_texts(writer, path, 30, lambda count: None)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])  # in the middle of a batch
    again = write_texts(writer, path, 30, lambda count: None)
    assert again == whole
    assert path.read_bytes() == data


def test_a_model_that_says_nothing_of_use_is_not_asked_for_ever(tmp_path: Path) -> None:
    asked: list[int] = []

    def writer(number: int) -> list[TrainingText]:
        asked.append(number)
        return []

    with pytest.raises(UsageError, match="--messages"):
        write_texts(writer, tmp_path / "texts.jsonl", 30, lambda count: None)
    assert len(asked) == 16
