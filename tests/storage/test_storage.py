"""An object store: the same cases on every server, keys that nobody sees, and faults told in words."""

import os
import pickle
import secrets
import socket
import ssl
import threading

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyarrow.fs import FileSelector, FileType

import labs
import object_servers
from labkit.errors import StorageError
from labkit.settings import Settings
from labkit.storage import store as storage
from labkit.storage.client import ObjectFiles, arrow
from labkit.storage.keys import KeyFile


@pytest.fixture(scope="module", params=object_servers.KINDS)
def store(request, tmp_path_factory):
    with object_servers.start(request.param, tmp_path_factory.mktemp("home")) as store:
        yield store


@pytest.fixture
def own(tmp_path):
    with object_servers.embedded(tmp_path / "home") as store:
        yield store


@pytest.fixture
def place(store):
    """A path of its own in the store."""
    return store.storage_path(f"test-{secrets.token_hex(4)}")


def put(fs, path, content):
    with fs.open_output_stream(path) as stream:
        stream.write(content)


def get(fs, path):
    with fs.open_input_stream(path) as stream:
        return stream.read()


# -- the same on every server ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["plain.txt", "with space.txt", "größe/日本.bin", "a+b=c&d%20.txt", "x" * 200]
)
def test_round_trip(store, place, name):
    fs, body = store.filesystem, secrets.token_bytes(777)
    put(fs, f"{place}/{name}", body)
    assert get(fs, f"{place}/{name}") == body
    info = fs.get_file_info(f"{place}/{name}")
    assert (info.type, info.size) == (FileType.File, 777)
    listed = fs.get_file_info(FileSelector(place, recursive=True))
    assert [i.path for i in listed if i.type == FileType.File] == [f"{place}/{name}"]


def test_what_is_not_there(store, place):
    assert store.filesystem.get_file_info(f"{place}/no").type == FileType.NotFound
    with pytest.raises(FileNotFoundError):
        get(store.filesystem, f"{place}/no")


def test_an_object_is_replaced_whole(store, place):
    put(store.filesystem, f"{place}/a", b"long" * 100)
    put(store.filesystem, f"{place}/a", b"short")
    assert get(store.filesystem, f"{place}/a") == b"short"


def test_a_tree_is_deleted_and_nothing_beside_it(store, place):
    fs = store.filesystem
    for name in ("tree/a", "tree/deep/b", "tree2/c"):
        put(fs, f"{place}/{name}", b"1")
    fs.delete_dir(f"{place}/tree")
    left = [i.path for i in fs.get_file_info(FileSelector(place, recursive=True)) if i.type == FileType.File]
    assert left == [f"{place}/tree2/c"]


def test_create_dir_below_a_bucket_costs_nothing(store, place):
    """Ray Train makes its folders before it writes; a marker object for them is what some servers refuse."""
    store.filesystem.create_dir(f"{place}/a/b", recursive=True)
    assert store.files.find(place) == []


def test_a_large_object_goes_in_parts(store, place):
    body = secrets.token_bytes(20 << 20)  # 8 MB each
    put(store.filesystem, f"{place}/large", body)
    assert get(store.filesystem, f"{place}/large") == body
    assert store.files.info(f"{place}/large")["size"] == len(body)


@pytest.mark.parametrize("size, requests", [(0, None), (1, 1), (777, 1), (1 << 20, 1), ((1 << 20) + 1, None)])
def test_a_small_object_is_read_with_one_request(store, place, size, requests, monkeypatch):
    body, asked = secrets.token_bytes(size), []
    put(store.filesystem, f"{place}/one", body)
    real = type(store.files)._call_s3

    async def counted(files, method, *given, **options):
        asked.append(method)
        return await real(files, method, *given, **options)

    monkeypatch.setattr(type(store.files), "_call_s3", counted)
    with store.filesystem.open_input_stream(f"{place}/one") as stream:
        assert stream.read() == body
    if requests:
        assert asked == ["get_object"] * requests


def test_parquet_by_pieces(store, place):
    """A reader of Parquet seeks: footer first, then the columns it wants."""
    table = pa.table({"a": range(1000), "b": [str(k) for k in range(1000)]})
    pyarrow.parquet.write_table(table, f"{place}/t.parquet", filesystem=store.filesystem)
    read = pyarrow.parquet.read_table(f"{place}/t.parquet", columns=["a"], filesystem=store.filesystem)
    assert read["a"].to_pylist() == list(range(1000))


def test_buckets_are_made_once_and_counted(store):
    name = f"test-{secrets.token_hex(4)}"
    assert store.bucket(name) == store.bucket(name) == name
    store.files.pipe_file(f"{name}/a", b"12345")
    (found,) = [b for b in store.buckets() if b.name == name]
    assert (found.objects, found.bytes) == (1, 5)
    assert f"<td>{name}</td><td>1</td><td>5 B</td>" in str(store._repr_html_())
    store.files.rm(name, recursive=True)
    assert name not in [b.name for b in store.buckets()]


def test_the_preflight_leaves_nothing(store):
    assert store.files.find(f"{store.home_bucket}/.labkit") == []


def test_the_file_system_pickles_without_a_secret(store, place):
    put(store.filesystem, f"{place}/a", b"1")
    pickled = pickle.dumps(store.filesystem)
    for secret in store._keys.read():
        assert secret.encode() not in pickled
    again = pickle.loads(pickled)
    assert again == store.filesystem and again.equals(store.filesystem)
    assert get(again, f"{place}/a") == b"1"


def test_keys_are_shown_nowhere(store, caplog):
    with caplog.at_level("DEBUG", logger="s3fs"):
        store.files.call("list_buckets")
    shown = [repr(store), store._repr_html_(), repr(store.filesystem), repr(store.files)]
    shown += [repr(store.files.storage_options), repr(vars(store)), caplog.text]
    for secret in store._keys.read():
        assert not any(secret in text for text in shown)
    assert "••••" in store._repr_html_()


def test_keys_lie_in_a_file_of_mine_alone(store):
    assert os.stat(store._keys.path).st_mode & 0o777 == 0o600
    assert os.stat(os.path.dirname(store._keys.path)).st_mode & 0o777 == 0o700


def test_storage_path(store):
    assert store.storage_path() == "lab"
    assert store.storage_path("runs", "03-torch") == "lab/runs/03-torch"
    for part in ("", "/runs", "../other", "a//b", 3, None):
        with pytest.raises(StorageError, match="cannot be a part"):
            store.storage_path(part)


def test_no_such_bucket(store):
    with pytest.raises(StorageError, match="no such bucket"), store.explained("write"):
        store.files.call("put_object", Bucket="there-is-none", Key="a", Body=b"1")


def test_an_unknown_bucket_in_a_path(store):
    """A reader's own table, written by pyarrow: what of the path is the bucket?"""
    table, path = pa.table({"a": [1]}), "there-is-none/tables/mine.parquet"
    for use in (
        lambda: pyarrow.parquet.write_table(table, path, filesystem=store.filesystem),
        lambda: put(store.filesystem, path, b"1" * (20 << 20)),
        lambda: get(store.filesystem, path),
    ):
        with pytest.raises(FileNotFoundError, match="first part of a path is its bucket") as caught:
            use()
        assert "store.bucket('there-is-none')" in str(caught.value)


def test_a_bucket_needs_a_proper_name(store):
    with pytest.raises(StorageError, match="make the bucket 'A'"):
        store.bucket("A")


# -- other processes ---------------------------------------------------------------------------------

READ = """
import pickle, sys
fs = pickle.loads(bytes.fromhex(sys.argv[1]))
print(fs.open_input_stream(sys.argv[2]).read().decode())
"""


def test_another_process_reads_by_the_key_file(store, place):
    put(store.filesystem, f"{place}/a", b"found")
    done = labs.python(READ, pickle.dumps(store.filesystem).hex(), f"{place}/a", LABKIT_S3_SECRET_KEY="wrong")
    assert done.stdout.strip() == "found"


def test_on_another_machine_the_environment_has_the_keys(store, place, tmp_path):
    """There is no key file there."""
    put(store.filesystem, f"{place}/a", b"found")
    keys = store._keys.read()
    pickled = pickle.dumps(
        arrow(ObjectFiles(endpoint=store.endpoint, keys=str(tmp_path / "none"), profile="a"))
    )
    pairs = [("LABKIT_S3_ACCESS_KEY", "LABKIT_S3_SECRET_KEY"), ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")]
    for access, secret in pairs:
        variables = dict(zip((access, secret), keys, strict=True))
        assert labs.python(READ, pickled.hex(), f"{place}/a", **variables).stdout.strip() == "found"


def test_a_process_that_used_a_store_ends(store, place):
    lines = READ + "print('end')"
    put(store.filesystem, f"{place}/a", b"found")
    done = labs.python(lines, pickle.dumps(store.filesystem).hex(), f"{place}/a", timeout=30)
    assert (done.returncode, done.stdout.split()) == (0, ["found", "end"])


# -- a proxy ----------------------------------------------------------------------------------------

PROXY = "http://127.0.0.1:9"  # nobody listens there


@pytest.fixture
def proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, PROXY)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_a_store_on_this_machine_is_reached_without_the_proxy(proxy, tmp_path):
    with object_servers.embedded(tmp_path / "home") as own:
        put(own.filesystem, "lab/a", b"found")
        pickled = pickle.dumps(own.filesystem).hex()
        assert labs.python(READ, pickled, "lab/a", http_proxy=PROXY).stdout.strip() == "found"


def test_a_store_elsewhere_is_asked_through_the_proxy(proxy, tmp_path):
    with pytest.raises(StorageError, match="the proxy .* does not reach") as caught:
        connect("http://store.example:9000", "key", "secret", home=tmp_path)
    assert "no_proxy" in caught.value.fix and "storage.start()" not in str(caught.value)


# -- connect -----------------------------------------------------------------------------------------


def connect(*args, home, **options):
    return storage.connect(*args, settings=Settings(home=home), **options)


def test_connect_to_one_that_runs(own, tmp_path):
    other = connect(own.endpoint, *own._keys.read(), home=tmp_path)
    assert not other.is_ours and "not started by the lab" in other._repr_html_()
    assert os.path.exists(other._keys.path)
    other.stop()
    assert not os.path.exists(other._keys.path)
    assert repr(other).endswith("stopped)") and "stopped" in other._repr_html_()
    assert own._server.alive


def test_settings_name_a_store(own, tmp_path):
    access, secret = own._keys.read()
    settings = Settings(
        home=tmp_path / "b", s3_endpoint=own.endpoint, s3_access_key=access, s3_secret_key=secret
    )
    with storage.start(settings=settings) as store:
        assert not store.is_ours and store.endpoint == own.endpoint


def test_wrong_keys(own, tmp_path):
    access, secret = own._keys.read()
    with pytest.raises(StorageError, match="does not know this access key"):
        connect(own.endpoint, "NOBODY", secret, home=tmp_path / "b")
    with pytest.raises(StorageError, match="secret key is not the one") as caught:
        connect(own.endpoint, access, "guessed-wrongly", home=tmp_path / "b")
    assert access not in str(caught.value) and "guessed-wrongly" not in str(caught.value)
    assert not list((tmp_path / "b").glob("objects/keys*"))  # what did not serve is not kept


def test_a_wrong_clock(own, tmp_path, monkeypatch):
    import datetime

    import botocore.auth

    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: now.replace(tzinfo=None)
    )
    with pytest.raises(StorageError, match="clock"):
        connect(own.endpoint, *own._keys.read(), home=tmp_path / "b")


@pytest.mark.parametrize(
    ("answers", "fact"),
    [
        ([(404, "NoSuchBucket"), (403, "AccessDenied")], "make the bucket 'lab'.*no right"),
        ([(404, "NoSuchBucket"), (409, "BucketAlreadyExists")], "make the bucket 'lab'.*another user"),
        ([(403, "AccessDenied")], "look into the bucket 'lab'.*no right"),
        ([(403, "RequestTimeTooSkewed")], "clock"),
        ([(403, "ExpiredToken")], "expired"),
        ([(500, "InternalError")], "look into the bucket 'lab'.*says"),
    ],
    ids=lambda value: value[-1][1] if isinstance(value, list) else "",
)
def test_refusals(answers, fact, tmp_path):
    import re

    with object_servers.answering(*answers) as url, pytest.raises(StorageError) as caught:
        connect(url, "key", "secret", home=tmp_path)
    assert re.search(fact, str(caught.value), re.DOTALL)


def test_nobody_listens(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StorageError, match="nothing listens"):
            connect(url, "key", "secret", home=tmp_path)
    with pytest.raises(StorageError, match=r"nothing listens|not answer"):
        connect("http://no-such-host.invalid:9000", "key", "secret", home=tmp_path)


@pytest.mark.timeout(15)
def test_somebody_listens_and_is_silent(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(StorageError, match="does not answer"),
    ):
        connect(f"http://127.0.0.1:{silent.getsockname()[1]}", "key", "secret", home=tmp_path)


def test_tls_against_a_plain_port(own, tmp_path):
    with pytest.raises(StorageError, match="speaks plain HTTP") as caught:
        connect(own.endpoint.replace("http:", "https:"), "key", "secret", home=tmp_path)
    assert "http://" in caught.value.fix


def test_plain_against_a_tls_port(tls_port, tmp_path):
    with pytest.raises(StorageError, match="speaks TLS"):
        connect(f"http://127.0.0.1:{tls_port}", "key", "secret", home=tmp_path)


def test_a_certificate_that_nobody_signed(tls_port, tmp_path):
    with pytest.raises(StorageError, match="signed the certificate") as caught:
        connect(f"https://127.0.0.1:{tls_port}", "key", "secret", home=tmp_path)
    assert "AWS_CA_BUNDLE" in caught.value.fix


@pytest.mark.parametrize("status", [403, 404, 405, 500])
def test_an_endpoint_that_is_a_web_page(status, tmp_path):
    with object_servers.answering((status, "")) as url, pytest.raises(StorageError) as caught:
        connect(url, "key", "secret", home=tmp_path)
    assert f"HTTP status {status}" in caught.value.fact and "S3 endpoint" in caught.value.fix


@pytest.mark.parametrize(
    "endpoint", ["", "127.0.0.1:9000", "s3://bucket", "http://host/path", "http://", 9000, ["http://a"]]
)
def test_an_endpoint_is_a_url(endpoint, tmp_path):
    with pytest.raises(StorageError, match="endpoint"):
        connect(endpoint, home=tmp_path)


def test_keys_come_in_pairs(tmp_path):
    with pytest.raises(StorageError, match="belong together"):
        connect("http://127.0.0.1:1", "key", home=tmp_path)


def test_keys_of_the_killed_are_removed(own, tmp_path):
    import platform

    folder = tmp_path / "b" / "objects"
    folder.mkdir(parents=True)
    names = {pid: folder / f"keys-{platform.node()}-{pid}-ab" for pid in (os.getpid(), 2**30)}
    for path in names.values():
        path.write_text("{}")
    with pytest.raises(StorageError):
        connect("http://127.0.0.1:1", "key", "secret", home=tmp_path / "b")
    assert [path.exists() for path in names.values()] == [True, False]


def test_keys_that_others_can_read_are_refused(tmp_path):
    keys = KeyFile.create(tmp_path / "keys", "access", "secret")
    assert keys.read() == ("access", "secret")
    assert KeyFile.create(tmp_path / "keys", "other", "other") == keys  # the first ones stay
    for spoil, fact in (
        (lambda path: path.write_text("[a]\n"), "damaged"),
        (lambda path: path.write_text("{"), "damaged"),
        (lambda path: path.chmod(0o640), "mode 0640|damaged"),
    ):
        spoil(tmp_path / "keys")
        with pytest.raises(StorageError, match=fact) as caught:
            keys.read()
        assert "rm " in caught.value.fix and "secret" not in str(caught.value).replace("aws_secret", "")


@pytest.fixture
def tls_port(tmp_path):
    """A port that answers in TLS, with a certificate that it signed itself."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    certificate = (
        builder.not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "both.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_shake_hands, args=(server, context), daemon=True).start()
        yield server.getsockname()[1]


def _shake_hands(server, context):
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        try:
            context.wrap_socket(connection, server_side=True).close()
        except OSError:
            connection.close()
