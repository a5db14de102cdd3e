"""An object store: the same cases on every server, keys that are never shown, and faults in words."""

import os
import pickle
import re
import secrets
import socket

import pytest
from pyarrow.fs import FileSelector, FileType

import labs
import object_servers
from labkit.errors import BadInput, LabError, NotReachable
from labkit.local import storage
from labkit.settings import Settings
from labkit.storage import Store, check_run_name, hint_for
from labkit.storage.client import ObjectFiles, arrow
from object_servers import error

pytestmark = pytest.mark.slow


# As people give them.
NAMES = ["lr=0.1", " a", "größe 🚀", "50%25", "a+b&c=d", "#1", "a\\b'\"", "a?b", "*", "**", "a[b]", "[!a]"]
NAMES += ["a?versionId=3"]


@pytest.fixture(scope="module", params=object_servers.KINDS)
def store(request, tmp_path_factory):
    with object_servers.start(request.param, tmp_path_factory.mktemp("home")) as store:
        yield store


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with object_servers.embedded(tmp_path_factory.mktemp("own")) as store:
        yield store


@pytest.fixture
def place(store):
    """A path of its own in the store."""
    return store.storage_path(f"test-{secrets.token_hex(4)}")


@pytest.fixture
def neighbours(store):
    """Objects that the names match as patterns."""
    kept = [f"lab/t/{name}/d/f" for name in ("axb", "ab", "b", "abc")]
    store.files.pipe(dict.fromkeys(kept, b"kept"))
    yield sorted(kept)
    store.files.rm("lab", recursive=True)
    store.bucket("lab")


def put(fs, path, content):
    with fs.open_output_stream(path) as stream:
        stream.write(content)


def get(fs, path):
    with fs.open_input_stream(path) as stream:
        return stream.read()


# -- the same on every server ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 777, 1 << 20, 20 << 20])  # the last one goes in parts
def test_round_trip(store, place, size):
    fs, path, body = store.filesystem, f"{place}/{'x' * 200}", secrets.token_bytes(size)
    put(fs, path, b"what was there before is replaced whole" * 100)
    put(fs, path, body)
    assert get(fs, path) == body
    info = fs.get_file_info(path)
    assert (info.type, info.size) == (FileType.File, size)
    listed = fs.get_file_info(FileSelector(place, recursive=True))
    assert [i.path for i in listed if i.type == FileType.File] == [path]
    with pytest.raises(FileNotFoundError):
        get(fs, f"{place}/no")
    with pytest.raises(LabError, match="NoSuchBucket"), store.explained("write"):
        store.files.pipe_file("there-is-none/a", b"1")


def test_a_small_object_is_read_with_one_request(store, place, caplog):
    put(store.filesystem, f"{place}/one", b"1")
    with caplog.at_level("DEBUG", logger="s3fs"):
        get(store.filesystem, f"{place}/one")
    assert [text.split()[1] for text in caplog.messages if text.startswith("CALL")] == ["get_object"]


def test_keys_are_shown_nowhere_and_in_no_pickle(store, place, caplog):
    with caplog.at_level("DEBUG", logger="s3fs"):
        store.files.call_s3("list_buckets")
    shown = [repr(store), repr(store.filesystem), repr(store.files)]
    shown += [repr(store.files.storage_options), repr(vars(store)), caplog.text]
    pickled = pickle.dumps(store.filesystem)
    for secret in store.read_keys():
        assert not any(secret in text for text in shown) and secret.encode() not in pickled
    assert os.stat(store.keys).st_mode & 0o777 == 0o600
    assert os.stat(store.keys.parent).st_mode & 0o777 == 0o700
    again = pickle.loads(pickled)
    put(store.filesystem, f"{place}/a", b"1")
    assert again.equals(store.filesystem) and get(again, f"{place}/a") == b"1"


# -- names: each can be written, read, listed, copied, moved and deleted ---------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_through_pyarrows_file_system(store, neighbours, name):
    fs, place = store.filesystem, f"lab/t/{name}"
    with fs.open_output_stream(f"{place}/d/f") as stream:
        stream.write(b"1")
    assert fs.open_input_stream(f"{place}/d/f").read() == b"1"
    assert fs.get_file_info(place).type == FileType.Directory
    assert fs.get_file_info(f"{place}/d/f").size == 1
    listed = [entry.path for entry in fs.get_file_info(FileSelector(place, recursive=True))]
    assert listed == [f"{place}/d", f"{place}/d/f"]
    assert place in [entry.path for entry in fs.get_file_info(FileSelector("lab/t"))]
    fs.copy_file(f"{place}/d/f", f"{place}/e/g{name}")
    fs.move(f"{place}/e", f"{place}/h")
    assert store.files.find(place) == sorted([f"{place}/d/f", f"{place}/h/g{name}"])
    fs.move(f"{place}/h/g{name}", f"{place}/i{name}")
    fs.delete_file(f"{place}/i{name}")
    assert store.files.find(place) == [f"{place}/d/f"]
    fs.delete_dir_contents(place)
    assert store.files.find("lab/t") == neighbours
    store.files.pipe_file(f"{place}/f", b"1")
    fs.delete_dir(place)
    assert store.files.find("lab/t") == neighbours


@pytest.mark.parametrize("name", ["a?b", "**"])
def test_through_fsspec(store, neighbours, name):
    files, place = store.files, f"lab/t/{name}"
    files.pipe_file(f"{place}/f", b"1")
    assert files.exists(place) and files.isdir(place) and files.cat(f"{place}/f") == b"1"
    files.copy(place, f"{place}2", recursive=True)
    files.copy(place, f"{place}2", recursive=True)  # as `cp`: into a folder that exists
    files.rm(place, recursive=True)
    assert files.find(f"{place}2") == [f"{place}2/{name}/f", f"{place}2/f"]
    files.rm(files.find(f"{place}2"))
    assert files.find("lab/t") == neighbours
    assert files.glob("lab/t/a?b/d/*") == ["lab/t/axb/d/f"]  # here a pattern is one
    with pytest.raises(FileNotFoundError):
        files.copy("lab/t/none", place, recursive=True)


@pytest.mark.parametrize("path", ["lab/t/../x", "s3://lab//x"])
def test_parts_that_http_takes_away_are_refused_at_once(store, path):
    with pytest.raises(LabError, match='empty, "." or ".."') as raised:
        store.files.pipe_file(path, b"1")
    store.files.exists(raised.value.fix.strip("'"))
    assert store.files.exists("s3://lab/") and store.files.exists("/lab/")


def test_an_object_that_the_server_refuses_before_it_reads_it(own, monkeypatch):
    """This hung without a limit."""
    hasty = ObjectFiles(endpoint=own.endpoint, keys=str(own.keys), hasty=True)
    monkeypatch.setattr(hasty, "_folder", None)  # the client's own guard
    hasty.pipe_file("lab/data", b"1")
    with pytest.raises(LabError, match="InternalError"), own.explained("write"):
        hasty.pipe_file("lab/data/part", b"1")


@pytest.mark.parametrize("size", [1, 9 << 20])  # bytes, in one request and in parts
@pytest.mark.parametrize("name", ["run", "run/part/below", "run/part/further/below"])
def test_a_key_that_would_hide_a_folder_is_refused_and_the_folder_stays(own, name, size):
    """rclone takes the bytes, says InternalError, and from then on doesn't find what is in the folder."""
    place = own.storage_path(f"test-{secrets.token_hex(4)}")
    own.files.pipe_file(f"{place}/run/part", b"1")
    own.files.pipe_file(f"{place}/source", bytes(size))
    writes = [
        lambda: put(own.filesystem, f"{place}/{name}", bytes(size)),
        lambda: own.files.pipe_file(f"{place}/{name}", bytes(size)),
        lambda: own.files.call_s3(
            "copy_object", Bucket="lab", Key=f"{place[4:]}/{name}", CopySource=f"{place}/source"
        ),
        lambda: own.files.call_s3("put_object", Bucket="lab", Key=f"{place[4:]}/run/", Body=b""),
    ]
    for write in writes:
        with pytest.raises(LabError, match="can't be both a folder and an object") as refused:
            write()
        assert own.files.find(f"{place}/run") == [f"{place}/run/part"]
    if "key in it" in refused.value.fix:
        own.files.pipe_file(refused.value.fix.rpartition(" ")[2], b"1")
    own.files.rm(f"{place}/run", recursive=True)
    own.files.pipe_file(f"{place}/run", b"1")  # a folder is gone with its last object
    assert own.files.cat_file(f"{place}/run") == b"1"


def test_what_others_have_put_is_read_in_ranges_with_the_documented_setting(own, monkeypatch):
    """boto3's checksum of the whole object comes with each range of it, and only their own reader minds."""
    import boto3
    from botocore.exceptions import FlexibleChecksumError

    def client():
        access, secret = own.read_keys()
        keys = {"aws_access_key_id": access, "aws_secret_access_key": secret}
        return boto3.client("s3", endpoint_url=own.endpoint, region_name="us-east-1", **keys)

    def first_byte():
        return client().get_object(Bucket="lab", Key="theirs", Range="bytes=0-0")["Body"].read()

    client().put_object(Bucket="lab", Key="theirs", Body=b"123")
    assert own.files.cat_file("lab/theirs", start=0, end=1) == b"1"
    with pytest.raises(FlexibleChecksumError):  # if not, the page and its entry in docs/upstream.md can go
        first_byte()
    page = (labs.ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    (setting,) = set(re.findall(r"export (AWS_RESPONSE_CHECKSUM_VALIDATION)=(\w+)", page))
    monkeypatch.setenv(*setting)
    assert first_byte() == b"1"


@pytest.mark.parametrize("name", ["größe", 3, "日本", "lr\n3", "../up", "a//b", "", "x" * 256, "ab/" * 301])
def test_a_name_that_would_fail_after_the_start(name):
    for good in ("03-torch", "exp/lr=0.1 [a] 50%? *", "x" * 255, "..."):
        check_run_name(good)
    check_run_name("größe", only_ascii=False)  # Ray Tune
    with pytest.raises(LabError, match="ASCII.*255 bytes") as raised:
        check_run_name(name)
    check_run_name(raised.value.fix.removeprefix("RunConfig(name='").removesuffix("')"))


# -- a disk that is full ----------------------------------------------------------------------------


def test_a_full_disk(tmp_path):
    """No file of the server's may grow larger than this, as under a quota."""
    import resource

    with object_servers.embedded(tmp_path / "home") as store:
        resource.prlimit(object_servers.process(store).pid, resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))
        with pytest.raises(LabError, match="is its disk full") as caught, store.explained("write an object"):
            store.files.pipe_file("lab/object", os.urandom(1 << 16))
    assert str(tmp_path) in caught.value.fix


# -- other processes ---------------------------------------------------------------------------------

READ = """
import pickle, sys
fs = pickle.loads(bytes.fromhex(sys.argv[1]))
print(fs.open_input_stream(sys.argv[2]).read().decode())
"""


def read_elsewhere(filesystem, path, **variables):
    """What a process prints that reads the object; it must end, too."""
    done = labs.python(READ, pickle.dumps(filesystem).hex(), path, **variables)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def test_another_process_takes_the_keys_from_the_file_and_on_another_machine_from_its_environment(
    own, tmp_path
):
    put(own.filesystem, "lab/a", b"found")
    assert read_elsewhere(own.filesystem, "lab/a", LABKIT_S3_SECRET_KEY="wrong") == "found"
    elsewhere = arrow(ObjectFiles(endpoint=own.endpoint, keys=str(tmp_path / "none")))
    pairs = [("LABKIT_S3_ACCESS_KEY", "LABKIT_S3_SECRET_KEY"), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    for names in pairs:
        variables = dict(zip(names, own.read_keys(), strict=True))
        assert read_elsewhere(elsewhere, "lab/a", **variables) == "found"


def test_the_readers_own_keys_are_not_hidden(own, tmp_path):
    """The lab's file is set on its session, and in no environment."""
    mine = tmp_path / "aws"
    mine.write_text("[default]\naws_access_key_id = MINE\naws_secret_access_key = mine\n")
    put(own.filesystem, "lab/a", b"found")
    assert read_elsewhere(own.filesystem, "lab/a", AWS_SHARED_CREDENTIALS_FILE=str(mine)) == "found"
    look = "import botocore.session as s; from labkit.local import storage; storage.start(); "
    look += "print(s.Session().get_credentials().access_key)"
    done = labs.python(look, AWS_SHARED_CREDENTIALS_FILE=str(mine), LABKIT_HOME=str(own.home))
    assert done.stdout.strip() == "MINE"


def test_a_store_on_this_machine_is_reached_without_the_proxy(own, tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # no server listens there
    put(own.filesystem, "lab/proxy", b"found")
    with connect(own.endpoint.replace("127.0.0.1", "localhost"), *own.read_keys(), tmp_path) as other:
        assert read_elsewhere(other.filesystem, "lab/proxy") == "found"


# -- a store that runs already -----------------------------------------------------------------------


def connect(url, access, secret, home):
    return storage.connect(url, access, secret, settings=Settings(home=home))


def test_connect_to_one_that_runs(own, tmp_path):
    first, other = (connect(own.endpoint, *own.read_keys(), tmp_path) for _ in range(2))
    other.stop()
    assert first.keys.exists() and not other.keys.parent.exists() and repr(other).endswith("stopped)")
    first.files.pipe_file("lab/a", b"1")  # the server goes on
    access, secret = own.read_keys()
    named = Settings(home=tmp_path, s3_endpoint=own.endpoint, s3_access_key=access, s3_secret_key=secret)
    with storage.start(settings=named) as store:
        assert store.endpoint == own.endpoint and type(store) is Store
    with pytest.raises(BadInput):
        storage.start(settings=Settings(home=tmp_path, s3_endpoint=own.endpoint, s3_access_key="A"))


def test_wrong_keys(own, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    access, secret = own.read_keys()
    with pytest.raises(NotReachable, match="InvalidAccessKeyId"):
        connect(own.endpoint, "NOBODY", secret, tmp_path)
    with pytest.raises(LabError, match="SignatureDoesNotMatch") as caught:
        connect(own.endpoint, access, "guessed-wrongly", tmp_path)
    assert access not in str(caught.value) and "guessed-wrongly" not in str(caught.value)
    assert not list(tmp_path.glob("labkit-keys*"))  # what did not serve is not kept


@pytest.mark.parametrize(
    ("answers", "fact"),
    [
        ([(404, "NoSuchBucket"), (403, "AccessDenied")], "make the bucket 'lab'\n.*right to do that"),
        ([(404, "NoSuchBucket"), (409, "BucketAlreadyExists")], "BucketAlreadyExists"),
        ([(403, "AccessDenied")], "right to do that"),
        ([(403, "RequestTimeTooSkewed")], "clock"),
        ([(500, "InternalError")], "InternalError"),
        ([(404, "")], "are endpoint and port right"),  # a web page
    ],
    ids=str,
)
def test_refusals(answers, fact, tmp_path):
    with object_servers.answering(*answers) as url, pytest.raises(LabError, match=f"(?s){fact}"):
        connect(url, "key", "secret", tmp_path)


WRONG_REGION = error(
    "AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong; expecting 'eu-central-1'"
)
WRONG_PLACE = error("IllegalLocationConstraintException", "The eu-north-1 location constraint is …")
TEMPORARY_KEY = error("InvalidAccessKeyId", AWSAccessKeyId="ASIAEXAMPLE")
TEMPORARY = {"LABKIT_S3_ACCESS_KEY": "ASIAEXAMPLE", "LABKIT_S3_SECRET_KEY": "of-a-class"}


def pasted(fix, monkeypatch):
    """Do what a fix says with the environment; of several exports, each. A text in place of its dots."""
    for name in re.findall(r"unset ((?:[A-Z_0-9]+ ?)+)", fix):
        for variable in name.split():
            monkeypatch.delenv(variable)
    for name, value in re.findall(r"([A-Z_0-9]+)=([^\s,;]+)", fix):
        monkeypatch.setenv(name, value.replace("…", "given"))


@pytest.mark.parametrize(
    ("fact", "refusal", "accepted", "before"),
    [
        ("AuthorizationHeaderMalformed", (400, WRONG_REGION), "/eu-central-1/s3/", {}),
        ("IllegalLocationConstraintException", (400, WRONG_PLACE), "/eu-north-1/s3/", {}),
        ("InvalidAccessKeyId", (403, TEMPORARY_KEY), "x-amz-security-token", TEMPORARY),
        ("ExpiredToken", (400, error("ExpiredToken")), "Credential=given", {"AWS_SESSION_TOKEN": "old"}),
        ("InvalidToken", (400, error("InvalidToken")), "Credential=given", {"AWS_SESSION_TOKEN": "old"}),
        ("/gone/ca.pem, which does not exist", None, "", {"AWS_CA_BUNDLE": "/gone/ca.pem"}),
        ("ProfileNotFound", None, "", {"AWS_PROFILE": "school"}),
        ("ConfigParseError", None, "", {"AWS_CONFIG_FILE": __file__}),
    ],
)
def test_each_fix_of_a_store_of_others_works_when_pasted(
    fact, refusal, accepted, before, tmp_path, monkeypatch
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-mine")
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    with object_servers.of_others(refusal, accepted) as url:
        monkeypatch.setenv("LABKIT_S3_ENDPOINT", f"{url}/storage/v1/s3")  # Supabase's has a path
        monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
        with pytest.raises(LabError, match=fact) as caught:
            storage.start()
        assert "of-mine" not in str(caught.value) and "of-a-class" not in str(caught.value)
        pasted(caught.value.fix, monkeypatch)
        with storage.start() as store:
            store.files.pipe_file("lab/a", b"1")
            assert store.files.cat_file("lab/a") == b"1"


def test_a_redirect_without_a_region_names_the_other_endpoint(tmp_path, monkeypatch):
    """botocore asked for the region by a request that was redirected, too: a RecursionError."""
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path))
    monkeypatch.setenv("LABKIT_S3_ACCESS_KEY", "key")
    monkeypatch.setenv("LABKIT_S3_SECRET_KEY", "secret")
    with object_servers.of_others(None, "") as right:
        elsewhere = error("PermanentRedirect", Endpoint=f"lab.{right.partition('//')[2]}", Bucket="lab")
        with object_servers.of_others((301, elsewhere), "never") as wrong:
            monkeypatch.setenv("LABKIT_S3_ENDPOINT", wrong)
            with pytest.raises(LabError, match="PermanentRedirect") as caught:
                storage.start()
            pasted(caught.value.fix, monkeypatch)
            with storage.start() as store:
                assert store.endpoint == right


ENDPOINTS = [
    ("s3.eu-central-1.amazonaws.com", 'storage.connect("https://s3.eu-central-1.amazonaws.com")'),
    ("s3://films/2026", "bucket='films'"),
    ("http://host:9000/?a=b", 'storage.connect("http://host:9000")'),
]


@pytest.mark.parametrize("endpoint, fix", ENDPOINTS)
def test_an_endpoint_that_is_no_url(endpoint, fix):
    with pytest.raises(BadInput) as caught:
        storage.connect(endpoint, "key", "secret")
    assert fix in caught.value.fix


@pytest.mark.timeout(150)  # without `hasty` it would be many minutes
def test_nobody_answers(own, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NotReachable) as caught:
            connect(url, "key", "secret", tmp_path)
        assert hint_for(str(caught.value))
        with pytest.raises(LabError) as caught:
            connect(url.replace("//", "//user:password@"), "key", "secret", tmp_path)
        assert "password" not in str(caught.value)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(NotReachable, match="Timeout") as caught,
    ):
        connect(f"http://127.0.0.1:{silent.getsockname()[1]}", "key", "secret", tmp_path)
    assert hint_for(str(caught.value))
    with pytest.raises(NotReachable) as caught:
        connect(own.endpoint.replace("http:", "https:"), "key", "secret", tmp_path)
    assert "http://" in caught.value.fix and "AWS_CA_BUNDLE" in caught.value.fix


@pytest.mark.parametrize(
    "text",
    [
        'ReadTimeoutError: HTTPSConnectionPool(host="huggingface.co", port=443): Read timed out.',
        'EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.amazonaws.com/mine"',
        "ValueError: http://127.0.0.1:9000 is odd",
    ],
)
def test_another_server_is_not_blamed_on_the_store(text):
    assert hint_for(text) is None
