"""Segment the held-out scans with all packs and score the result. Needs what 02_learn.py wrote."""

from pathlib import Path

from continual_segment import Model, PreparedDataset, RawDataset, Segmenter, evaluate, segment

WORK = Path("examples_out")
MODEL = WORK / "model"


def main() -> None:
    dataset = PreparedDataset.open(WORK / "prepared" / "totalseg")
    raw = RawDataset.open(WORK / "raw" / "Dataset901_totalseg")

    # From file to file, as `conseg segment` does it ...
    for name in dataset.case_names("test"):
        failures = segment(dataset.case(name).raw_scan, MODEL, WORK / "segmented")
        assert not failures, failures
    print(evaluate(WORK / "segmented", raw.folder, prepared=dataset.folder).table())

    # ... or in memory, with one loading of the model for any number of scans, and only some organs.
    segmenter = Segmenter(Model.open(MODEL), organs=["liver", "Left Parotid"])
    scan, _ = raw.read(raw.cases[0])
    result = segmenter(scan, scores=True)
    assert result.scores is not None
    for organ_id, name in result.labels.names.items():
        organ = result.labels.voxels == organ_id
        highest = result.scores.voxels.max(where=organ, initial=0)
        print(f"{name}: {organ.sum()} voxels, highest probability {highest:.2f}")


if __name__ == "__main__":
    main()
