"""HTTP routes that create, list and delete memories and tokens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request

from anytimecl.serve.asking import ASKER
from anytimecl.serve.memories import Memories
from anytimecl.serve.problems import Problem
from anytimecl.serve.rights import Grant
from anytimecl.serve.routes import new_router
from anytimecl.serve.schemas import (
    GrantedTold,
    MemoriesTold,
    MemoryAsked,
    MemoryTold,
    TokenAsked,
    TokensTold,
    TokenTold,
    problem_responses,
)
from anytimecl.serve.tokens import AccessTokens
from anytimecl.serve.uploads import json_body, parse, takes

Name = Annotated[str, Path(max_length=64)]


def make_router(memories: Memories, tokens: AccessTokens) -> APIRouter:
    """Routes about the service as a whole."""
    router = new_router("/v1")
    _add_memories(router, memories)
    _add_tokens(router, memories, tokens)
    return router


def _add_memories(router: APIRouter, memories: Memories) -> None:
    async def tell(names: list[str]) -> list[MemoryTold]:
        grant, opened = ASKER.get().grant, memories.opened()
        covered = [name for name in names if grant.covers((name,))]
        sizes = await memories.default.answer(lambda: list(map(memories.disk_bytes, covered)))
        return [
            MemoryTold(name=name, right=grant.right, open=name in opened, bytes=size)
            for name, size in zip(covered, sizes, strict=True)
        ]

    @router.get("/memories", tags=["Memories"], summary="Every memory")
    async def list_memories() -> MemoriesTold:
        """The memories that the token is valid for."""
        return MemoriesTold(memories=await tell(memories.names()))

    @router.post(
        "/memories",
        tags=["Memories"],
        status_code=201,
        summary="Begin a memory",
        **takes(MemoryAsked),
    )
    async def create_memory(request: Request) -> MemoryTold:
        """Empty, with the model that all memories share."""
        asked = parse(MemoryAsked, await json_body(request))
        await memories.create(asked.name)
        return (await tell([asked.name]))[0]

    @router.get("/memories/{memory}", tags=["Memories"], summary="One memory")
    async def get_memory(memory: Name) -> MemoryTold:
        """For its contents see its own `stats`."""
        if memory not in memories.names():
            raise Problem(404, "There is no such memory.")
        return (await tell([memory]))[0]

    @router.delete(
        "/memories/{memory}",
        tags=["Memories"],
        status_code=204,
        summary="Delete a memory for good",
        responses=problem_responses(409),
    )
    async def delete_memory(memory: Name) -> None:
        """Work in progress is finished first. Granted tokens lose access to it."""
        await memories.delete(memory)


def _add_tokens(router: APIRouter, memories: Memories, tokens: AccessTokens) -> None:
    granted, trail = tokens.granted, memories.default.audit

    @router.get("/tokens", tags=["Tokens"], summary="Every token")
    async def list_tokens() -> TokensTold:
        """Names, rights and memories of all tokens."""
        own = {one.name for _, one in granted}
        return TokensTold(tokens=[_token_told(one, one.name in own) for one in tokens])

    @router.post(
        "/tokens",
        tags=["Tokens"],
        status_code=201,
        summary="Grant a token",
        **takes(TokenAsked),
    )
    async def grant_token(request: Request) -> GrantedTold:
        """Valid at once, and after a restart. Only this response contains the token."""
        asked = parse(TokenAsked, await json_body(request))
        _check_grant(asked, tokens, memories)
        chosen = None if asked.memories is None else frozenset(asked.memories)
        grant = Grant(asked.name, asked.right, chosen)
        token = await memories.default.answer(lambda: granted.add(grant))
        if token is None:  # another request granted it meanwhile
            raise _taken(asked.name)
        trail.add("granted", token=asked.name, right=asked.right, memories=asked.memories)
        told = _token_told(grant, revocable=True)
        return GrantedTold(**told.model_dump(), token=token)

    @router.delete(
        "/tokens/{name}",
        tags=["Tokens"],
        status_code=204,
        summary="Revoke a token",
        responses=problem_responses(409),
    )
    async def revoke_token(name: Name) -> None:
        """Invalid from now on."""
        if await memories.default.answer(lambda: granted.revoke(name)):
            trail.add("revoked", token=name)
        elif any(one.name == name for one in tokens):
            raise Problem(409, "This token is the operator's: take it out where it is set.")
        else:
            raise Problem(404, "There is no token of that name.")


def _check_grant(asked: TokenAsked, tokens: AccessTokens, memories: Memories) -> None:
    if not tokens:
        raise Problem(
            409, "This service asks for no tokens. Start it with --tokens FILE to grant more."
        )
    if any(one.name == asked.name for one in tokens):
        raise _taken(asked.name)
    if len(tokens.granted) >= memories.options.tokens:
        raise Problem(409, f"{memories.options.tokens} tokens are granted: revoke some first.")
    if asked.right == "admin" and asked.memories is not None:
        raise Problem(409, "The right admin is for all memories: leave them out.")
    for name in sorted(set(asked.memories or ()) - set(memories.names())):
        raise Problem(409, f"There is no memory {name!r}: create it first.")


def _taken(name: str) -> Problem:
    return Problem(409, f"There is a token {name!r} already.")


def _token_told(grant: Grant, revocable: bool) -> TokenTold:
    memories = None if grant.memories is None else sorted(grant.memories)
    return TokenTold(name=grant.name, right=grant.right, memories=memories, revocable=revocable)
