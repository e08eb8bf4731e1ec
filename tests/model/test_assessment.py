"""What a pack knows of itself, in its file."""

import json
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save

from continual_segment.errors import ModelError
from continual_segment.model import Model, OrganPack
from continual_segment.model.assessment import Assessment, Domain, OrganAssessment


@pytest.fixture
def assessed(make_pack):
    """A pack with an assessment that fits it."""
    pack = make_pack("assessed")
    channels = sum(pack.network.features)
    domain = Domain((0.5,) * channels, ((0.1,) * channels,), (0.2,) * channels, 7)
    return replace(pack, assessment=Assessment({"trachea": OrganAssessment(0.9, 1.25, 4000)}, domain))


def described(pack):
    return json.loads(json.dumps(pack.described()))


def written(path, pack, description):
    """The pack with another description, as a stranger could write it."""
    pack.write(path)
    path.write_bytes(save(load_file(path), {"pack": json.dumps(description)}))
    return path


def test_an_assessment_is_stored_in_the_pack_and_read_again(assessed, tmp_path):
    assessed.write(tmp_path / "a.pack")
    found = OrganPack.read(tmp_path / "a.pack")
    assert found.assessment == assessed.assessment
    assert found.to_bytes() == assessed.to_bytes()
    assert described(assessed)["format"] == 2


def test_a_pack_without_assessment_keeps_its_bytes_and_format(make_pack):
    pack = make_pack("plain")
    assert "assessment" not in described(pack)
    assert described(pack)["format"] == 1


def test_the_fingerprint_is_that_of_the_same_weights_without_assessment(assessed):
    assert replace(assessed, assessment=None).fingerprint == assessed.fingerprint


def test_an_assessed_pack_has_the_same_bytes_in_every_model(assessed, make_pack, base_folder, tmp_path):
    model = Model.open(base_folder).add(assessed)
    alone = model.pack_path("assessed").read_bytes()
    model.remove("assessed")
    model = Model.open(base_folder).add(make_pack("other", seed=3)).add(assessed)
    assert model.pack_path("assessed").read_bytes() == alone == assessed.to_bytes()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("organs.trachea.dice", 1.5),
        ("organs.trachea.dice", float("nan")),
        ("organs.trachea.dice", "0.9"),
        ("organs.trachea.temperature", 0.0),
        ("organs.trachea.temperature", 1e9),
        ("organs.trachea.voxels", -1),
        ("organs.liver", {"dice": 0.9, "temperature": 1.0, "voxels": 5}),
        ("organs", [1]),
        ("domain.mean", [0.5]),
        ("domain.mean", []),
        ("domain.mean.0", float("inf")),
        ("domain.mean.0", 1e300),
        ("domain.rest.0", 0.0),
        ("domain.rest.0", -1.0),
        ("domain.rest.0", float("nan")),
        ("domain.directions.0", [1.0]),
        ("domain.directions.0.0", 1e300),
        ("domain.directions", 1),
        ("domain.scans", 1),
        ("domain", "chest"),
    ],
)
def test_a_hostile_assessment_is_refused(assessed, path, value, tmp_path):
    description = described(assessed)
    *outer, last = path.split(".")
    place = description["assessment"]
    for name in outer:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[int(last) if isinstance(place, list) else last] = value
    file = written(tmp_path / "hostile.pack", assessed, description)
    with pytest.raises(ModelError, match=r"hostile\.pack"):
        OrganPack.read(file)


def test_more_directions_than_allowed_are_refused(assessed, tmp_path):
    description = described(assessed)
    description["assessment"]["domain"]["directions"] *= 1000
    with pytest.raises(ModelError, match="directions"):
        OrganPack.read(written(tmp_path / "hostile.pack", assessed, description))
