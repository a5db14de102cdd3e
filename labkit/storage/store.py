"""A handle on an object store.

The keys are in no code, output or pickle. Workers on this machine read them from a file of mode 0600, workers
elsewhere from their environment (``LABKIT_S3_ACCESS_KEY`` and ``LABKIT_S3_SECRET_KEY``, or AWS's own ways).
"""

import atexit
import contextlib
import functools
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit import interrupts
from labkit.display.formatting import without_credentials
from labkit.errors import BadInput, LabError, NotReachable, expect_installed
from labkit.settings import Settings
from labkit.storage.keys import read_keys, write_keys

if TYPE_CHECKING:  # s3fs and pyarrow take a second to import
    import pyarrow.fs

    from labkit.storage.client import ObjectFiles

_TOKEN = (
    "these are temporary keys, which are valid together with their token only: unset LABKIT_S3_ACCESS_KEY "
    "LABKIT_S3_SECRET_KEY, and export AWS_ACCESS_KEY_ID=…, AWS_SECRET_ACCESS_KEY=…, AWS_SESSION_TOKEN=…"
)
_BUNDLE = "unset AWS_CA_BUNDLE, or let it name a file with certificates"
# S3's codes or botocore's exceptions, and the fix for them; `_filled_in` knows its fields.
_KNOWN = (
    (
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "NoCredentialsError"),
        "check LABKIT_S3_ACCESS_KEY and LABKIT_S3_SECRET_KEY on every node: are they of this store?",
    ),
    (
        ("AccessDenied", "403", "BucketAlreadyExists"),
        "ask who runs the store for the right to do that, or name another bucket: export LABKIT_S3_BUCKET=…",
    ),
    (
        ("ProxyConnectionError", "SSLError"),
        "is it http:// or https://? Own certificate: export AWS_CA_BUNDLE=…; no proxy: export no_proxy=HOST",
    ),
    (
        (
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
            "InvalidLocationConstraint",
            "InvalidRegionName",
        ),
        "export AWS_REGION={region}",
    ),
    (
        ("PermanentRedirect", "301"),
        "export AWS_REGION={region}, and export LABKIT_S3_ENDPOINT={other}",
    ),
    (
        ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
        "get new temporary keys, and set all three of them again: export AWS_ACCESS_KEY_ID=…, "
        "AWS_SECRET_ACCESS_KEY=…, AWS_SESSION_TOKEN=…",
    ),
    (("NoSuchBucket",), 'store.bucket("…") makes one, or name one that exists'),
    (
        ("RequestTimeTooSkewed",),
        "set the clock of this machine or of the store: timedatectl set-ntp true",
    ),
    (("ProfileNotFound",), "unset AWS_PROFILE, or make that profile: aws configure --profile {profile}"),
    (("ConfigParseError",), "correct the file {config}, or: export AWS_CONFIG_FILE=/dev/null"),
)
_FIXES = {code: fix for codes, fix in _KNOWN for code in codes}


@dataclass(eq=False, repr=False)
class Store:
    """A handle on an object store; in a ``with`` statement it stops at the end of the block."""

    endpoint: str  # its URL
    keys: Path | None  # the file with its keys; None if botocore finds keys by itself
    home_bucket: str  # that `storage_path` starts with
    running: bool = True  # until `stop`

    @functools.cached_property
    def files(self) -> "ObjectFiles":
        """The store as an fsspec file system, with paths ``bucket/key``."""
        return self._files()

    @functools.cached_property
    def filesystem(self) -> "pyarrow.fs.FileSystem":
        """The store for Ray and pyarrow. It pickles without a secret, and works in every worker."""
        from labkit.storage.client import arrow

        return arrow(self.files)

    def read_keys(self) -> tuple[str | None, str | None]:
        """Return (access key, secret key), for another client; Nones if clients find keys by themselves."""
        return read_keys(self.keys) if self.keys is not None else (None, None)

    def bucket(self, name: str) -> str:
        """Create the bucket `name` unless it exists, and return the name."""
        with self.explained(f"make the bucket {name!r}"):
            self.files.make_bucket(name)
        return name

    def storage_path(self, *parts: str) -> str:
        """Return a path below the home bucket, without ``s3://``, for ``RunConfig(storage_path=…)``."""
        return "/".join((self.home_bucket, *parts))

    @contextlib.contextmanager
    def explained(self, attempt: str) -> Iterator[None]:
        """Raise what fails in this block as a LabError that names the store."""
        try:
            yield
        except LabError:
            raise
        except Exception as error:
            raise NotReachable(attempt, *_explain(error, self.endpoint, self._otherwise())) from error

    def _otherwise(self) -> str:
        """Return the fix of an error that no rule knows."""
        fix = "are endpoint and port right, and does the store run there? Or it refused a large object "
        return fix + "unread: may these keys write there, and has it room?"

    def stop(self) -> None:
        """Leave the store; its data stay. A store that the lab did not start runs on."""
        if not self.running:
            return
        with interrupts.stoppable("store.stop()", left="The store has been left all the same"):
            self.running = False
            atexit.unregister(self.stop)
            self._leave()

    def _leave(self) -> None:
        """Remove the keys of `connect`."""
        if self.keys is not None:
            shutil.rmtree(self.keys.parent, ignore_errors=True)

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def __repr__(self) -> str:
        status = f"bucket {self.home_bucket!r}" if self.running else "stopped"
        return f"Store({without_credentials(self.endpoint)}, {status})"

    def _files(self, **options: Any) -> "ObjectFiles":
        from labkit.storage.client import ObjectFiles

        # s3fs would return an earlier client of this store, from before the reader changed a variable.
        ObjectFiles.clear_instance_cache()
        return ObjectFiles(endpoint=self.endpoint, keys=str(self.keys or ""), **options)

    def check_access(self) -> None:
        """Make the home bucket; write, read and delete an object.

        Ray would meet the same errors minutes later, in a worker, with a long traceback.
        """
        files = self._files(hasty=True)
        path = f"{self.home_bucket}/.labkit/check-{secrets.token_hex(4)}"
        with self.explained(f"make the bucket {self.home_bucket!r}"):
            files.make_bucket(self.home_bucket)
        with self.explained(f"write, read and delete an object in the bucket {self.home_bucket!r}"):
            files.pipe_file(path, b"check")
            files.cat_file(path)
            files.rm_file(path)


def connect(
    endpoint: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    *,
    bucket: str | None = None,
    settings: Settings | None = None,
) -> Store:
    """Use an object store that runs already (MinIO, AWS, …). It is never stopped from here.

    The keys are kept in a file of mode 0600 until this process ends, for the workers on this machine.
    Without keys here and in the settings, those that AWS's own tools find are used. A store that cannot be
    used is refused within seconds.

    Args:
        endpoint, access_key, secret_key: default: ``LABKIT_S3_ENDPOINT`` and so on.
        bucket: the store's home bucket, which is made if it does not exist (default: ``LABKIT_S3_BUCKET``,
            else "lab").
    """
    attempt = "connect to an object store"
    expect_installed(attempt, "s3fs", "pyarrow")
    settings = settings or Settings.from_env()
    url = str(endpoint or settings.s3_endpoint or "").rstrip("/")
    shown = without_credentials(url)
    if not re.fullmatch(r"https?://[^\s/?#]+(/[^\s?#]*)?", url):
        example = "http://host:9000"
        if re.fullmatch(r"[\w.-]+(:\d+)?(/[^\s?#]*)?", url):  # only the scheme is missing
            example = f"https://{url}"
        fix = f'storage.connect("{example}"), or export LABKIT_S3_ENDPOINT={example}'
        if url.startswith("s3://"):
            fix += f"; the bucket comes separately: bucket={url.removeprefix('s3://').partition('/')[0]!r}"
        raise BadInput(attempt, f"the endpoint is {shown!r}, which is not a URL", fix)
    if access_key is None and secret_key is None:
        access_key, secret_key = settings.s3_access_key, settings.s3_secret_key
    if bool(access_key) != bool(secret_key):  # the given one would be ignored, and AWS's own pair used
        fix = f"give both or none: storage.connect({shown!r}, access_key, secret_key)"
        raise BadInput(attempt, "one of the two keys is missing", fix)
    keys = None
    if access_key and secret_key:
        keys = Path(tempfile.mkdtemp(prefix="labkit-keys-")) / "credentials"
        write_keys(keys, access_key, secret_key)
    store = Store(url, keys, bucket or settings.s3_bucket)
    atexit.register(store.stop)
    left = "This process is not connected to it"
    with interrupts.stoppable(f"the connection to {shown}", undo=store.stop, left=left):
        store.check_access()
    return store


def _explain(error: BaseException, endpoint: str, otherwise: str) -> tuple[str, str]:
    """Return (fact, fix) of an error of s3fs or botocore, by S3's code or the exception's name."""
    chain = []
    link: BaseException | None = error
    while link is not None:
        chain.append(link)
        link = link.__cause__ or link.__context__
    responses = [getattr(link, "response", None) for link in chain]
    answers = [response for response in responses if isinstance(response, dict) and "Error" in response]
    codes = [str(answer["Error"].get("Code")) for answer in answers]
    names = [*codes, *(cls.__name__ for link in chain for cls in type(link).__mro__)]
    shown = without_credentials(endpoint)
    bundle = os.environ.get("AWS_CA_BUNDLE", "")
    if "FileNotFoundError" in names and "HTTPClientError" in names and bundle and not os.path.exists(bundle):
        return f"{shown}: AWS_CA_BUNDLE names {bundle}, which does not exist", _BUNDLE
    for name in names:
        if name in _FIXES:
            fix = _filled_in(_FIXES[name], answers[0] if answers else {}, endpoint)
            if name == "InvalidAccessKeyId":
                key = answers[0]["Error"].get("AWSAccessKeyId")
                if str(key).startswith("ASIA"):  # the key of temporary keys
                    fix = _TOKEN
            if not codes:  # it did not come to a request
                return without_credentials(f"{shown}: {name}: {error}")[:300], fix
            return f"{shown} refused it: {name}", fix
    return without_credentials(f"{endpoint}: {names[0]}: {error}")[:300], otherwise


def _filled_in(fix: str, answer: dict[str, Any], endpoint: str) -> str:
    """Return a fix with the region and the endpoint that S3's answer names, and this process's AWS files."""
    error = answer.get("Error", {})
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    host = str(error.get("Endpoint") or "").removeprefix(f"{error.get('Bucket')}.")
    host = re.sub(r"^[^.]+\.(?=s3[.-])", "", host)
    text = f"{error.get('Message')} {host} {endpoint}"
    expected = re.findall(r"expecting '([\w-]+)'", text) + re.findall(r"\b[a-z]{2}-[a-z-]+-\d\b", text)
    region = headers.get("x-amz-bucket-region") or error.get("Region") or next(iter(expected), "…")
    return fix.format(
        region=region,
        other=f"{endpoint.partition('://')[0]}://{host}" if host else "https://its-address",
        profile=os.environ.get("AWS_PROFILE", "default"),
        config=os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )


def hint_for(text: str) -> str | None:
    """Return the fix for a worker's error text in which botocore says that a store here didn't answer."""
    if "endpoint URL" not in text or "//127.0.0.1:" not in text:
        return None
    return (
        "the object store does not answer. storage.start() starts the lab's own again, on the same data; "
        "a run of the same name then goes on from its last checkpoint"
    )


def bad_part(path: str) -> bool:
    """Return whether a part is empty, "." or "..": HTTP clients drop these, and ask for another object."""
    return not {"", ".", ".."}.isdisjoint(path.split("/"))


def check_run_name(name: str, *, only_ascii: bool = True) -> None:
    """Refuse the name of a run that would fail after its start: it becomes a path in the store.

    Ray Train's controller encodes it as ASCII, too; Ray Tune does not.
    """
    text = str(name)
    fits = isinstance(name, str) and name.isprintable() and (name.isascii() or not only_ascii)
    # Of a file name most disks have 255 bytes. Of a key S3 has 1,024, and checkpoints add folders and files.
    parts = [len(part.encode(errors="replace")) for part in text.split("/")]
    if not fits or bad_part(text) or max(parts) > 255 or sum(parts) > 600:
        fact = f"a name has printable {'ASCII ' * only_ascii}characters, and between slashes no part is "
        fact += 'empty, "." or "..", or has more than 255 bytes (600 in all)'
        possible = re.sub(r"[^a-zA-Z0-9_=.-]+", "-", text)[:255].strip("-.") or "my-run"
        raise BadInput(f"start a run with the name {name!r:.80}", fact, f"RunConfig(name={possible!r})")
