"""Archives that are broken or hostile: every answer is bounded, checked, and refused with a reason."""

from __future__ import annotations

import errno
import json
import os
import ssl
import time
from functools import partial

import pytest
from made_archive import Reply, certificate, made_up, needs_openssl
from made_node import SHORT, segment_balls
from made_scans import read_header, write_series

from continual_segment.clinic.jobs import Job
from continual_segment.errors import ContinualSegmentError
from continual_segment.node.config import Rule
from continual_segment.node.dicomweb import services
from continual_segment.node.dicomweb.address import SeriesQuery, parse_service
from continual_segment.node.dicomweb.credentials import Credentials
from continual_segment.node.dicomweb.http import LocalError, Request, WebError, WebService
from continual_segment.node.dicomweb.multipart import upload_of
from continual_segment.node.dicomweb.services import (
    FoundSeries,
    RetrieveLimits,
    retrieve_series,
    search_series,
    store_file,
)

UID = "1.2.3.4"
SERIES = FoundSeries("1.2.3", UID, None)
ROOM = RetrieveLimits(series_mb=1, free_disk_mb=1)
RELATED = 'multipart/related; type="application/dicom"; boundary="here"'


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(services, "FIRST_WAIT_SECONDS", 0.01)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The slices of the series, as bytes."""
    folder = tmp_path_factory.mktemp("hostile")
    return [path.read_bytes() for path in write_series(folder, SHORT, SeriesInstanceUID=UID)]


def row(study="1.2.3", series=UID, modality="CT", count=9):
    values = {"0020000D": study, "0020000E": series, "00080060": modality, "00201209": count}
    return {tag: {"vr": "UI", "Value": [value]} for tag, value in values.items() if value is not None}


def as_json(data, **options):
    return Reply(json.dumps(data).encode(), **options)


def parts(*contents, kind=b"application/dicom", boundary=b"here", end=b"--here--\r\n"):
    head = b"--" + boundary + b"\r\nContent-Type: " + kind + b"\r\n\r\n"
    return b"".join(head + each + b"\r\n" for each in contents) + end


def search(*replies):
    with made_up(*replies) as (address, asked):
        return search_series(WebService(parse_service(address)), SeriesQuery()), asked


def retrieve(tmp_path, reply, series=SERIES, limits=ROOM):
    with made_up(reply) as (address, _):
        return retrieve_series(WebService(parse_service(address)), series, tmp_path / "series", limits)


def test_the_made_up_archive_can_also_be_a_good_one(tmp_path, images):
    assert search(as_json([row()]), as_json([]))[0] == [FoundSeries("1.2.3", UID, 9)]
    preamble = b"to be ignored\r\n"
    found = retrieve(tmp_path, Reply(preamble + parts(*images), RELATED))
    assert len(found) == len(list((tmp_path / "series").iterdir())) == len(images)
    assert sorted(path.read_bytes() for path in (tmp_path / "series").iterdir()) == sorted(images)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(b"<html>please log in</html>", "text/html"), "text/html"),
        (Reply(b"[", "application/dicom+json"), "JSON"),
        (Reply(b"[" * 100_000, "application/dicom+json"), "JSON"),
        (as_json({"no": "list"}), "list"),
        (as_json([row(series="../../etc/passwd")]), "UID"),
        (as_json([row(study="1.2.3/../4")]), "UID"),
        (as_json([row(series="1." + "2" * 100)]), "UID"),
        (as_json([row(series=None)]), "UID"),
        (as_json([row(series=7)]), "UID"),
        (as_json([7]), "UID"),
        (Reply(b"", status=302, headers=(("Location", "http://127.0.0.1:9/"),)), "302"),
        (Reply(b"", status=401), "credentials"),
        (Reply(b"", status=404), "404"),
        (Reply(b"x", headers=(("Content-Encoding", "gzip"),)), "gzip"),
        (Reply(b" " * 2**16, endless=True), "bytes allowed"),
        (Reply(b"", status=503), "503"),
    ],
)
def test_a_search_with_a_wrong_answer_is_an_error_with_its_reason(reply, reason, monkeypatch):
    monkeypatch.setattr(services, "LARGEST_JSON_MB", 0.5)
    with pytest.raises(WebError, match=reason):
        search(reply)


def test_what_is_no_ct_is_left_out_and_an_archive_that_repeats_itself_ends_the_search():
    found, asked = search(as_json([row(), row(series="1.2.9", modality="MR")]))
    assert [each.uid for each in found] == [UID]
    assert len(asked) == 2


def test_a_page_without_any_ct_does_not_end_the_search():
    found, _ = search(as_json([row(series="1.2.9", modality="MR")]), as_json([row()]))
    assert [each.uid for each in found] == [UID]


def test_a_passing_failure_is_tried_again_and_a_lasting_one_is_not():
    found, asked = search(Reply(status=503), Reply(b"[", "application/dicom+json"), as_json([row()]))
    assert len(found) == 1
    assert len(asked) == 4  # and one for the next page
    with made_up(Reply(status=404)) as (address, asked):
        with pytest.raises(WebError):
            search_series(WebService(parse_service(address)), SeriesQuery())
        assert len(asked) == 1


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda images: Reply(parts(*images), "application/dicom"), "multipart"),
        (
            lambda images: Reply(parts(*images), "multipart/related; type=image/jpeg; boundary=here"),
            "multipart",
        ),
        (lambda images: Reply(parts(*images), "multipart/related"), "boundary"),
        (lambda images: Reply(parts(*images), f"multipart/related; boundary={'x' * 300}"), "boundary"),
        (lambda images: Reply(parts(*images), 'multipart/related; boundary="a\\"b"'), "boundary"),
        (lambda images: Reply(parts(*images, kind=b"text/html"), RELATED), "no DICOM file"),
        (lambda images: Reply(parts(*images, end=b""), RELATED), "ends before"),
        (lambda images: Reply(parts(*images, boundary=b"heretic"), RELATED), "other characters"),
        (lambda images: Reply(parts(images[0][:200], boundary=b"there"), RELATED), "0 of all"),
        (lambda images: Reply(parts(*images, boundary=b"there"), RELATED), "too long"),
        (lambda images: Reply(b"--here\r\n" + b"X-Long: y\r\n" * 10_000, RELATED, endless=True), "too long"),
        (lambda images: Reply(parts(images[0][:200]), RELATED), "not readable|another series"),
        (lambda images: Reply(parts(b""), RELATED), "not readable|another series"),
        (lambda images: Reply(parts(*images), RELATED, headers=(("Content-Encoding", "gzip"),)), "gzip"),
        (lambda images: Reply(parts(images[0], end=b""), RELATED, endless=True), "bytes allowed"),
        (lambda images: Reply(parts(images[0] + b"\0" * 2**21), RELATED), "bytes allowed"),
    ],
)
def test_a_retrieval_with_a_wrong_answer_is_an_error_with_its_reason(tmp_path, images, make, reason):
    with pytest.raises(WebError, match=reason):
        retrieve(tmp_path, make(images))
    assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} <= {tmp_path / "series"}


def test_objects_of_another_series_too_many_too_few_or_on_a_full_disk_are_refused(tmp_path, images):
    whole = Reply(parts(*images), RELATED)
    cases = [
        (FoundSeries("1.2.3", "1.2.3.5", None), ROOM, "another series"),
        (SERIES, RetrieveLimits(instances=3, free_disk_mb=1), "more than 3"),
        (FoundSeries("1.2.3", UID, len(images) + 1), ROOM, "of 10 objects"),
        (SERIES, RetrieveLimits(free_disk_mb=1e12), "disk"),
    ]
    for number, (series, limits, reason) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(ContinualSegmentError, match=reason):
            retrieve(tmp_path / str(number), whole, series, limits)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_file_that_cannot_be_written_is_an_error_of_this_machine_and_not_tried_again(
    tmp_path, images, monkeypatch, number
):
    def refused(*given):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(services, "_write", refused)
    with made_up(Reply(parts(*images), RELATED)) as (address, asked):
        service = WebService(parse_service(address))
        with pytest.raises(LocalError, match=os.strerror(number)) as found:
            services.retried(partial(retrieve_series, service, SERIES, tmp_path / "series", ROOM))
    assert str(tmp_path / "series" / "000000.dcm") in str(found.value)
    assert address not in str(found.value)
    assert len(asked) == 1


def test_a_result_that_cannot_be_read_is_an_error_of_this_machine(tmp_path):
    path = tmp_path / "case.seg.dcm"
    path.write_bytes(b"x")
    upload = upload_of(path)
    path.unlink()
    with made_up(as_json([])) as (address, _):
        asked = WebService(parse_service(address)).ask(Request("POST", "/", "*/*", 1, 60, upload))
        with pytest.raises(LocalError, match=str(path)):
            asked.__enter__()


def test_a_connection_that_breaks_in_an_answer_is_an_error_of_the_archive(images):
    slow = Reply(parts(*images), RELATED, headers=(("Transfer-Encoding", "chunked"),))
    with made_up(slow) as (address, _):  # a body that is not chunked
        service = WebService(parse_service(address))
        with service.ask(Request("GET", "/", "*/*", 1, 60)) as answer, pytest.raises(WebError) as found:
            answer.read_all()
    assert found.value.transient


def test_an_image_that_comes_twice_counts_once(tmp_path, images):
    found = retrieve(tmp_path, Reply(parts(*images, *images), RELATED))
    assert len(found) == len(list((tmp_path / "series").iterdir())) == len(images)


def test_an_answer_that_never_ends_is_given_up_when_its_time_is_over():
    with made_up(Reply(b"x" * 1000, slow_seconds=0.2)) as (address, _):
        started = time.monotonic()
        with WebService(parse_service(address)).ask(Request("GET", "/", "*/*", 1, 1)) as answer:
            assert len(answer.read_all()) < 500  # the caller finds that it is not whole
        assert time.monotonic() - started < 15


@pytest.fixture
def result(tmp_path):
    write_series(tmp_path / "slices", SHORT)
    segment_balls(Job("case", tmp_path / "slices", tmp_path / "out"), Rule((tmp_path,)), ["dicom_seg"])
    return tmp_path / "out" / "case.seg.dcm"


def stored(uid, failed=False):
    item = {"00081155": {"vr": "UI", "Value": [uid]}, "00081197": {"vr": "US", "Value": [0xA700]}}
    return {"00081198" if failed else "00081199": {"vr": "SQ", "Value": [item]}}


def test_a_result_is_stored_only_where_the_archive_names_it_as_stored(result):
    uid = read_header(result).SOPInstanceUID
    answers = [
        (as_json(stored(uid, failed=True), status=409), "0xA700"),
        (as_json(stored(uid, failed=True), status=202), "0xA700"),
        (as_json(stored("1.2.3")), "confirm"),
        (as_json([]), "confirm"),
        (Reply(b"<html>logged out</html>", "text/html"), "text/html"),
    ]
    for reply, reason in answers:
        with made_up(reply) as (address, _), pytest.raises(WebError, match=reason):
            store_file(WebService(parse_service(address)), result)
    with made_up(as_json(stored(uid))) as (address, asked):
        store_file(WebService(parse_service(address), Credentials(token="abc")), result)
    ((line, headers, body),) = asked
    assert line == "POST /root/studies"
    assert headers["Authorization"] == "Bearer abc"
    assert result.read_bytes() in body
    assert int(headers["Content-Length"]) == len(body)


@needs_openssl
def test_a_certificate_that_nobody_trusts_is_refused_before_credentials_are_sent(tmp_path):
    own = certificate(tmp_path, "archive")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(own.certificate, own.key)
    with made_up(as_json([row()]), tls=server) as (address, asked):
        service = WebService(parse_service(address), Credentials(token="abc"))
        with pytest.raises(WebError, match="not trusted"):
            search_series(service, SeriesQuery())
        assert asked == []
        trusting = ssl.create_default_context(cafile=str(own.authorities))
        assert search_series(WebService(service.address, service.credentials, trusting), SeriesQuery())
