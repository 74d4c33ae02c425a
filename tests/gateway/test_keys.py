"""The keys that a gateway is told, and told anew."""

from pathlib import Path

import pytest

from semspec.keys import Keys, entry, new_key
from semspec_gateway.app import create_app
from semspec_gateway.store.store import Store
from tests.gateway.processes import SettingError
from tests.helpers.gateway import (
    API_KEY,
    OURS,
    OWNER,
    RENEWED,
    THEIRS,
    Gateway,
    GatewayFactory,
    bearer,
    eventually,
    make_settings,
    until,
)
from tests.helpers.gateway_fakes import Fakes


async def test_file_of_keys_is_read_again_when_it_changes(
    start_gateway: GatewayFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As a mounted secret changes: a link is turned to another folder."""
    for folder, key in (("first", OURS), ("second", THEIRS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "keys").write_text(f"# of the team\n{entry('us', key)}\n")
    link, file = tmp_path / "now", tmp_path / "now" / "keys"
    link.symlink_to("first")
    gateway = await start_gateway(api_keys="", api_keys_file=file)
    assert await statuses(gateway, OURS, THEIRS) == [200, 401]

    turn(link, "second")
    await until(lambda: statuses(gateway, THEIRS), lambda found: found == [200])
    assert await statuses(gateway, OURS, THEIRS) == [401, 200]
    revoked = (await gateway.http.get("/v1/models", headers=bearer(OURS))).json()["error"]
    assert (
        revoked["message"]
        == "this API key is not known, or no longer; get one from the gateway's operator"
    )

    file.write_text("broken")
    await eventually(lambda: "cannot be used, keeping the old" in caplog.text)
    assert await statuses(gateway, OURS, THEIRS) == [401, 200]
    assert "broken" not in caplog.text

    turn(link, "first")
    await until(lambda: statuses(gateway, OURS), lambda found: found == [200])


async def test_stream_ends_whole_though_its_key_is_revoked(
    start_gateway: GatewayFactory, tmp_path: Path
) -> None:
    (file := tmp_path / "keys").write_text(entry("us", API_KEY))
    gateway = await start_gateway(api_keys="", api_keys_file=file)
    async with gateway.held(1, stream=True) as running:
        file.write_text(entry("them", THEIRS))
        await until(lambda: statuses(gateway, API_KEY, THEIRS), lambda found: found == [401, 200])
    assert running.response.status_code == 200 and "data: [DONE]" in running.response.text


def turn(link: Path, target: str) -> None:
    """At once, so that there is no moment without."""
    new = link.with_name("new")
    new.symlink_to(target)
    new.replace(link)


async def statuses(gateway: Gateway, *keys: str) -> list[int]:
    return [(await gateway.http.get("/v1/models", headers=bearer(key))).status_code for key in keys]


HASH = entry("x", "y").partition(":")[2]


@pytest.mark.parametrize(
    ("api_keys", "file", "variable", "words"),
    [
        ("", None, "API_KEYS", "there is no API key"),
        ("sk-secret", None, "API_KEYS", "entry 1 is not NAME:SHA256"),
        (f"a:{HASH} b:secret", None, "API_KEYS", "entry 2 is not NAME:SHA256"),
        (f"a/secret:{HASH}", None, "API_KEYS", "entry 1 is not NAME:SHA256"),
        (f"a:{HASH[1:]}", None, "API_KEYS", "entry 1 is not NAME:SHA256"),
        (f"{'a' * 65}:{HASH}", None, "API_KEYS", "entry 1 is not NAME:SHA256"),
        (f"a:{HASH} secret:{HASH.upper()}", None, "API_KEYS", "one key has two names"),
        (f"secret:{HASH}", f"a:{HASH}", "API_KEYS", "one key has two names"),
        ("", "# secret", "API_KEYS_FILE", "the file has no entry"),
        ("", "secret", "API_KEYS_FILE", "entry 1 is not NAME:SHA256"),
        (
            "",
            "/nowhere/secret",
            "API_KEYS_FILE",
            "the file cannot be read (No such file or directory)",
        ),
    ],
)
def test_keys_that_cannot_be_used_end_the_process_in_one_line(
    api_keys: str,
    file: str | None,
    variable: str,
    words: str,
    tmp_path: Path,
    setting_error: SettingError,
) -> None:
    settings: dict[str, object] = {"API_KEYS": api_keys}
    if file is not None:
        path = settings["API_KEYS_FILE"] = Path(file) if file.startswith("/") else tmp_path / "keys"
        if path == tmp_path / "keys":
            path.write_text(file)
    line = setting_error(**settings)
    assert f"SEMSPEC_GATEWAY_{variable}: Value error, {words}" in line
    assert "secret" not in line and HASH not in line


def test_file_may_hold_comments_and_two_keys_of_one_owner(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# all of us\n\n{entry('us', OURS)}  # old\n{entry('us', RENEWED)}\r\n")
    keys = Keys(f"{entry('them', THEIRS)},", file)
    assert [keys.owner(key.encode()) for key in (OURS, RENEWED, THEIRS)] == ["us", "us", "them"]
    assert keys.owner(new_key().encode()) is None


def test_owner_is_an_operator_only_if_all_of_its_keys_are() -> None:
    ours = f"{entry('us', OURS)}:operator"
    assert Keys(ours, None).is_operator("us") and not Keys(ours, None).is_operator("them")
    assert not Keys(f"{ours} {entry('us', RENEWED)}", None).is_operator("us")
    with pytest.raises(ValueError, match="with :operator after it at most"):
        Keys(f"{entry('us', OURS)}:operators", None)


def test_settings_and_their_errors_hide_the_entries() -> None:
    settings = make_settings()
    app = create_app(settings, Fakes.make().backends, Store(settings))
    hash = entry(OWNER, API_KEY).partition(":")[2]
    assert hash not in repr(settings) and hash not in repr(vars(app.state))
