"""Apache Kafka's jars: from KAFKA_HOME, from the per-user cache, or fetched into it by Maven."""

import os
import re
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import platformdirs

from services.errors import LocalKafkaError

VERSION = "4.4.0"
JAVA_AT_LEAST = 17
FETCH_WITHIN_S = 600.0
OTHER_WAY_OUT = (
    "or use a Kafka you already have: give its address with --bootstrap or GEMSTREAM_KAFKA"
)


def java() -> str:
    """The path of a Java that is new enough. Raises LocalKafkaError."""
    path = shutil.which("java")
    install = f"install {JAVA_AT_LEAST} or newer (Debian: apt install default-jre-headless maven)"
    if path is None:
        raise LocalKafkaError(
            f"a local Kafka needs Java and there is none: {install}, {OTHER_WAY_OUT}"
        )
    told = subprocess.run([path, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    found = re.search(r'version "(\d+)', told.stderr)
    if found is None or int(found[1]) < JAVA_AT_LEAST:
        version = found[1] if found else told.stderr.strip()
        raise LocalKafkaError(
            f"a local Kafka needs Java {JAVA_AT_LEAST}, {path} is {version}: "
            f"{install}, {OTHER_WAY_OUT}"
        )
    return path


def jars() -> Path:
    """The directory with Kafka's jars, fetched when this user has none yet. Raises LocalKafkaError."""
    home = os.environ.get("KAFKA_HOME")
    if home:
        libs = Path(home) / "libs"
        if not any(libs.glob("kafka_*.jar")):
            raise LocalKafkaError(
                f"KAFKA_HOME is {home}, and {libs} has no kafka_*.jar: let it name the directory "
                "of a Kafka release, or unset it"
            )
        return libs
    cached = platformdirs.user_cache_path("gemstream") / f"kafka-{VERSION}"
    if not cached.is_dir():
        _fetch(cached)
    return cached


def version() -> str:
    """The release the jars are of. Raises LocalKafkaError."""
    return next(jars().glob("kafka_*.jar")).stem.rpartition("-")[2]


def _fetch(target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalKafkaError(
            "fetching Kafka's jars needs Maven and there is none: install it (Debian: apt install "
            f"maven), set KAFKA_HOME to a Kafka release, {OTHER_WAY_OUT}"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    pom = resources.files("services") / "kafka_jars.xml"
    with (
        resources.as_file(pom) as pom_path,
        tempfile.TemporaryDirectory(dir=target.parent, prefix="kafka-fetch-") as scratch,
    ):
        _copy_dependencies(maven, pom_path, Path(scratch) / "libs")
        try:
            (Path(scratch) / "libs").rename(target)
        except OSError as error:
            # Two runs at once: the other one was first, and its jars are as good as ours.
            if not target.is_dir():
                raise LocalKafkaError(f"cannot keep Kafka's jars in {target}: {error}") from error


def _copy_dependencies(maven: str, pom: Path, libs: Path) -> None:
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={libs}"]
    try:
        subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=True, timeout=FETCH_WITHIN_S
        )
    except subprocess.TimeoutExpired as error:
        raise LocalKafkaError(
            f"Maven did not fetch Kafka's jars within {FETCH_WITHIN_S:.0f} s: see whether its "
            f"repository can be reached and try again, {OTHER_WAY_OUT}"
        ) from error
    except subprocess.CalledProcessError as error:
        last = "\n".join((error.stdout + error.stderr).strip().splitlines()[-8:])
        raise LocalKafkaError(
            f"Maven could not fetch Kafka's jars ({' '.join(command)}):\n{last}\n"
            f"Put that right and try again, {OTHER_WAY_OUT}"
        ) from error
