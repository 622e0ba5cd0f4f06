"""Images in files as a column of a table: read one by one, silently, and through features of public ones."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pd = pytest.importorskip("pandas")
Image = pytest.importorskip("PIL.Image")

from sidelight.errors import InputError  # noqa: E402
from sidelight.features import ImageEncoder, PatchFeatures, encode_texts, encoders, image_table, read_images  # noqa: E402
from sidelight.features.image_files import read_image  # noqa: E402
from sidelight.privacy.ledger import Ledger  # noqa: E402
from sidelight.tables import TableModel, fit_tables  # noqa: E402


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_OPENED", "_ALONE", "_REMEMBERED"):
        monkeypatch.setattr(encoders, name, {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stripes across or down, 16 × 16, in folders of their names; and the features of the first of them."""
    root = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for kind, axis in (("across", 0), ("down", 1)):
        (root / "all" / kind).mkdir(parents=True)
        for k in range(150):
            wave = 128 + 90 * np.sin(1.6 * np.indices((16, 16))[axis] + rng.uniform(0, 6))
            pixels = (wave + rng.normal(0, 12, (16, 16))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / "all" / kind / f"{k:03}.png")
    public = image_table(root / "all")["image"][::5]
    shown = read_images(public, size=(16, 16), channels=1)
    PatchFeatures(patches=12, first_patches=6, components=16, mirror=False).fit(shown).save(
        root / "f.safetensors"
    )
    return root


def tables(folder: Path) -> tuple[Any, Any]:
    table = pd.DataFrame(image_table(folder / "all"))
    public = table.index % 5 == 0
    return table[~public].reset_index(drop=True), table[public].reset_index(drop=True)


def test_a_table_of_paths_is_fitted_and_predicted(folder: Path, tmp_path: Path) -> None:
    private, public = tables(folder)
    model = fit_tables(
        private,
        public,
        target="class",
        image="image",
        encoder=str(folder / "f.safetensors"),
        epsilon=4,
        random_state=0,
    )
    assert (model.predict(public) == public["class"]).mean() > 0.8
    assert any("f.safetensors" in line for line in model.privacy_.assumptions)
    model.save(tmp_path / "m")
    assert np.array_equal(TableModel.load(tmp_path / "m").predict(public), model.predict(public))


def test_an_image_is_alone_and_what_is_none_is_silent(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    encoder = ImageEncoder(folder / "f.safetensors")
    paths = image_table(folder / "all")["image"][:40]
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "half.png").write_bytes(Path(paths[0]).read_bytes()[:60])
    Image.new("L", (9000, 9000)).save(tmp_path / "huge.png")
    bad = [str(tmp_path / name) for name in ("pipe", "text.png", "half.png", "huge.png", "missing.png")]
    bad += ["/dev/zero", "\0", "\ud800", str(tmp_path), "x" * 100_000]
    with warnings.catch_warnings(action="error"):
        whole, mixed = encode_texts(encoder, paths), encode_texts(encoder, [*bad, *paths[::-1]])
    assert np.array_equal(mixed[len(bad) :], whole[::-1]) and not mixed[: len(bad)].any()
    assert np.array_equal(encode_texts(encoder, paths[7:8])[0], whole[7]) and whole.any(axis=1).all()
    assert capfd.readouterr() == ("", "")


def test_a_file_without_a_size_is_not_opened_and_no_image_warns(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc/kmsg is a regular file of no bytes, and reading it waits; Pillow warns with an image's size."""
    small = image_table(folder / "all")["image"][0]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert read_image(small, (8, 8, 1)) is not None
    assert warned == []
    opened: list[object] = []
    (tmp_path / "endless").touch()
    monkeypatch.setattr(Image, "open", lambda *given, **_: opened.append(given))
    assert read_image(tmp_path / "endless", (8, 8, 1)) is None and opened == []


def test_places_that_round_differently_are_given_one_image_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = PatchFeatures.transform

    def rounded(self: PatchFeatures, images: Any) -> Any:
        rows = honest(self, images)
        return rows + np.float32(1e-6) * np.arange(len(rows), dtype=np.float32)[:, None]

    monkeypatch.setattr(PatchFeatures, "transform", rounded)
    encoder = ImageEncoder(folder / "f.safetensors")
    paths = image_table(folder / "all")["image"][:5]
    assert not encoder._alike
    assert np.array_equal(encode_texts(encoder, paths)[::-1], encode_texts(encoder, paths[::-1]))


def test_bad_public_images_and_missing_encoders_are_said(folder: Path, tmp_path: Path) -> None:
    private, public = tables(folder)
    with pytest.raises(InputError, match="encoder"):
        fit_tables(private, public, target="class", image="image", epsilon=1)
    with pytest.raises(InputError, match="no features"):
        (tmp_path / "other").write_bytes(b"x")
        fit_tables(private, public, target="class", image={"image": str(tmp_path / "other")}, epsilon=1)
    with pytest.raises(InputError, match=r"gone.png"):
        read_images(["gone.png"], size=(8, 8))
    with pytest.raises(InputError, match="subfolder"):
        image_table(tmp_path / "none")


def test_workers_of_ray_are_not_asked_for_images_and_nothing_is_charged(folder: Path, tmp_path: Path) -> None:
    private, public = tables(folder)
    private.to_parquet(tmp_path / "private.parquet")
    ledger = Ledger.create(tmp_path / "images.ledger")
    ledger.register("images", relation="add-or-remove-one", epsilon=3.0, delta=1e-5)
    with pytest.raises(InputError, match="encode"):
        fit_tables(
            tmp_path / "private.parquet", public, target="class", image="image",
            encoder=str(folder / "f.safetensors"), epsilon=1.0, engine="ray", ledger=ledger,
        )  # fmt: skip
    assert not ledger.charges("images")
