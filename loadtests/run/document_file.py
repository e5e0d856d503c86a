"""JSON documents with a format version, such as `run.json`: written whole or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

Document = TypeVar("Document", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class DocumentFile(Generic[Document]):
    """The file `name` of a folder, which holds a `kind` of format `version` (its field `format_version`).

    A folder that has one is a `folder`, written by `writer`; what reading raises is `error`, and where the
    document is broken its remedy is `mend`.
    """

    name: str
    kind: type[Document]
    version: int
    error: type[Exception]
    folder: str
    writer: str
    mend: str

    def is_in(self, folder: Path) -> bool:
        """Whether `folder` has one."""
        return (folder / self.name).is_file()

    def write(self, folder: Path, document: Document) -> None:
        """Replace it atomically."""
        temporary = folder / f"{self.name}.new"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        temporary.replace(folder / self.name)

    def read(self, folder: Path) -> Document:
        """That of `folder`. Raises `error` where it is missing, broken or of another format."""
        path = folder / self.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self.error(
                f"{folder} is no {self.folder} ({error}): name one that `{self.writer}` wrote"
            ) from error
        try:
            version = msgspec.json.decode(content).get("format_version")
            if version != self.version:
                found = f"{path} has format {version}, this version reads {self.version}"
                raise self.error(f"{found}: use the one that wrote it")
            return msgspec.json.decode(content, type=self.kind)
        except (msgspec.DecodeError, AttributeError) as error:
            raise self.error(f"{path} is broken ({error}): {self.mend}") from error


def write_result(folder: Path, name: str, document: dict[str, Any]) -> None:
    """Keep what an experiment found as `name` in `folder`, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
