"""Downloads of exact revisions of models on the Hugging Face hub.

Branches move, so memories store the commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anytimecl.backbone import layout
from anytimecl.backbone.hub_name import HubName
from anytimecl.backbone.layout import INDEX, OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, WEIGHTS
from anytimecl.backbone.text import cache_folder
from anytimecl.errors import ModelError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TOKENIZER_FILES = [
    "added_tokens.json", "merges.txt", "sentencepiece.bpe.model", "special_tokens_map.json",
    "spiece.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json",
    "vocab.txt",
]  # fmt: skip
_SMALL = [
    "config.json", "preprocessor_config.json", "processor_config.json", OPEN_CLIP_CONFIG, INDEX,
    *TOKENIZER_FILES,
]  # fmt: skip
_FETCHED = [*_SMALL, WEIGHTS, "model-*-of-*.safetensors"]
_MAIN = "main"
_CONVERTER, _CONVERSION = "SFconvertbot", "Adding `safetensors` variant of this model"
_OTHERWISE = 'give a folder that holds the model, or use "embedded", which needs no hub'


def fetch(name: HubName) -> Path:
    """The folder of a hub model in the cache of huggingface_hub, downloaded if necessary.

    It has exactly the given revision or, if that has only pickled weights, the hub's conversion of
    them. Its name is the commit.
    """
    with _told(name):
        folder = _snapshot(name, name.revision, _SMALL)
    config, of_open_clip = _json(folder / "config.json"), (folder / OPEN_CLIP_CONFIG).is_file()
    if of_open_clip and (config is None or config.get("model_type") not in layout.tables()):
        config = None  # of another library, with a file of its own
    if config is not None:
        layout.check_type(str(name), config)  # before downloading gigabytes
    with _told(name, folder):
        if (folder / "config.json").is_file() and (config is not None or not of_open_clip):
            if not _complete(folder):
                folder = _snapshot(name, folder.name)
            if _complete(folder):
                return folder
            if (converted := _converted(name, folder)) is not None:
                return converted
        if of_open_clip:
            folder = _snapshot(name, folder.name, [*_SMALL, OPEN_CLIP_WEIGHTS])
            if (folder / OPEN_CLIP_WEIGHTS).is_file():
                return folder
        files = _api().list_repo_files(name.repository, revision=folder.name)
    raise layout.unreadable(str(name), files, config)


def commit_of(folder: Path) -> str:
    """The commit of a folder in the hub's cache; empty for any other folder."""
    return folder.name if folder.parent.name == "snapshots" else ""


def _snapshot(name: HubName, revision: str | None, patterns: list[str] = _FETCHED) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            huggingface_hub.snapshot_download(
                name.repository, revision=revision, allow_patterns=patterns
            )
        )
    except LocalEntryNotFoundError as error:
        # An older version may not have downloaded a file that is not needed.
        found = _partial(HubName(name.repository, revision), error)
        if found is not None and _complete(found):
            return found
        raise


def _partial(name: HubName, error: Exception) -> Path | None:
    """The folder of an incompletely downloaded revision."""
    # Newer versions of huggingface_hub give it, unless a commit was asked for.
    known = getattr(error, "snapshot_path", None) or _repository_folder(name) / "snapshots" / (
        name.revision or _MAIN
    )
    return Path(known) if Path(known).is_dir() else None


def _repository_folder(name: HubName) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{name.repository.replace('/', '--')}"


def _complete(folder: Path) -> bool:
    index = _json(folder / INDEX)
    if index is not None and not isinstance(index.get("weight_map"), dict):
        index = None
    return not layout.lacking(layout.files_in(folder), index)


def _converted(name: HubName, folder: Path) -> Path | None:
    """The hub's conversion of exactly these weights to safetensors, with its configuration.

    The hub's converter opens a pull request, which `transformers` uses as well. It is based on an
    older commit, and has these weights if the pickled files in it are the same.
    """
    note = cache_folder() / "conversions" / name.repository.replace("/", "--") / folder.name
    if note.is_file():  # found before, so it works offline
        return _snapshot(name, note.read_text(encoding="utf-8").strip())
    api = _api()
    own = _pickles(api, name.repository, folder.name)
    if not own:
        return None
    for request in api.get_repo_discussions(
        name.repository, author=_CONVERTER, discussion_type="pull_request"
    ):
        reference = f"refs/pr/{request.num}"
        if request.author != _CONVERTER or request.title != _CONVERSION:
            continue
        if _pickles(api, name.repository, reference) == own:
            found = _snapshot(name, reference)
            if _complete(found):
                with suppress(OSError):  # looked up again next time
                    note.parent.mkdir(parents=True, exist_ok=True)
                    note.write_text(found.name, encoding="utf-8")
                return found
    return None


def _pickles(api: HfApi, repository: str, revision: str) -> dict[str, str]:
    """The pickled weights of a revision, with a digest of each."""
    entries: Iterator[Any] = iter(api.list_repo_tree(repository, revision=revision))
    return {
        entry.path: entry.blob_id
        for entry in entries
        if re.fullmatch(r"pytorch_model[^/]*\.bin", entry.path)
    }


def _api() -> HfApi:
    import huggingface_hub

    return huggingface_hub.HfApi()


def _json(file: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


# ------------------------------------------------------------------------------------ errors


@contextmanager
def _told(name: HubName, folder: Path | None = None) -> Iterator[None]:
    """Translate errors of hub and network; `folder` is what the cache already has."""
    from huggingface_hub import errors

    # Errors of huggingface_hub's HTTP package, which differs between versions.
    http: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    try:
        yield
    except ModelError:
        raise
    # OSError: not found, no network, no permission. ValueError: an invalid name.
    except (OSError, ValueError, http) as error:
        if (told := _of_hub(name, error)) is not None:
            raise ModelError(told) from error
        folder = _partial(name, error) or folder
        if folder is not None:
            raise ModelError(_half(name, folder, error)) from error
        raise ModelError(_unreachable(name, error)) from error


def _of_hub(name: HubName, error: Exception) -> str | None:
    """The message for an answer of the hub; None for other errors."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return (
            f"{name} is gated: its owner asks for consent. Accept the conditions on "
            f"{_endpoint()}/{name.repository} with your account, log in here with `hf auth login` "
            f"or set HF_TOKEN, and try again. Or {_OTHERWISE}."
        )
    if isinstance(error, errors.DisabledRepoError):
        return f"The hub has disabled access to {name}: {_OTHERWISE}."
    if isinstance(error, errors.RevisionNotFoundError):
        return (
            f"{name.repository} is on the hub, but has no branch, tag or commit "
            f"{name.revision!r}.{_revisions(name)} A commit is given in full."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"There is no model {name.repository} on the hub ({_endpoint()}), or it is private. "
            "Check the spelling; for a private model log in with `hf auth login` or set HF_TOKEN. "
            f"Or {_OTHERWISE}."
        )
    if isinstance(error, errors.HFValidationError):
        return (
            f"{str(name)!r} cannot be the name of a model on the hub: that is OWNER/NAME in "
            "letters, digits, '-', '_' and '.', such as openai/clip-vit-base-patch32. Or "
            f"{_OTHERWISE}."
        )
    return None


def _revisions(name: HubName) -> str:
    """What the repository has instead, if the hub tells."""
    with suppress(Exception):
        refs = _api().list_repo_refs(name.repository)
        names = [ref.name for ref in (*refs.branches, *refs.tags)]
        return f" It has {', '.join(names[:8])}{' and more' if len(names) > 8 else ''}."
    return ""


def _unreachable(name: HubName, error: Exception) -> str:
    known = _cached(name)
    also = f" The cache has of it: {', '.join(known)}; name one with @." if known else ""
    return (
        f"{name} is not in the Hugging Face cache, and {_why(error)}.{also} Connect once and run "
        f"`anytimecl model fetch {name}`, {_OTHERWISE}."
    )


def _half(name: HubName, folder: Path, error: Exception) -> str:
    there = layout.files_in(folder)
    index = _json(folder / INDEX)
    lacks = layout.lacking(there, index if index and "weight_map" in index else None)
    requests = [ref for ref in _cached(name) if ref.startswith("refs/pr/")]
    also = (
        f" The cache also has {', '.join(requests)}: if that is the conversion of this model to "
        f"safetensors, name it: {name.repository}@{requests[0]}."
        if requests and name.revision in (None, _MAIN)
        else ""
    )
    return (
        f"Only a part of {name} is in the Hugging Face cache: {', '.join(lacks) or 'a file'} is "
        f"missing in {folder}, and {_why(error)}. Connect once and run `anytimecl model fetch "
        f"{name}`, {_OTHERWISE}.{also}"
    )


def _why(error: BaseException) -> str:
    from huggingface_hub import constants, errors

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so the hub is not asked"
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
    said = str(cause or error).strip().splitlines() or [type(error).__name__]
    return f"the hub ({_endpoint()}) cannot be used: {said[0].rstrip('.')}"


def _cached(name: HubName) -> list[str]:
    """Branches, tags and pull requests of a repository in the cache."""
    folder = _repository_folder(name) / "refs"
    if not folder.is_dir():
        return []
    refs = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
    return sorted(ref for ref in refs if ref != (name.revision or _MAIN))


def _endpoint() -> str:
    from huggingface_hub import constants

    return str(constants.ENDPOINT)
