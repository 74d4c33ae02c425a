"""A test certificate authority, and certificates in files."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM files of a certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates, each in a separate folder."""

    folder: Path
    _signer: trustme.CA = field(default_factory=trustme.CA)

    @property
    def file(self) -> Path:
        """PEM of the authority's own certificate."""
        path = self.folder / "ca.pem"
        self._signer.cert_pem.write_to_path(str(path))
        return path

    def issue(self, name: str, *hosts: str) -> Pair:
        """A certificate for these hosts, in the folder `name`."""
        issued, folder = self._signer.issue_cert(*(hosts or ("127.0.0.1",))), self.folder / name
        folder.mkdir()
        issued.cert_chain_pems[0].write_to_path(str(folder / "tls.crt"))
        issued.private_key_pem.write_to_path(str(folder / "tls.key"))
        return Pair(folder / "tls.crt", folder / "tls.key")

    def mount(self, name: str, *hosts: str) -> Pair:
        """As `issue`, behind the link `mounted`, which is replaced atomically, as the kubelet renews a secret."""
        self.issue(name, *hosts)
        draft = self.folder / ".mounted"
        draft.symlink_to(name)
        mounted = draft.replace(self.folder / "mounted")
        return Pair(mounted / "tls.crt", mounted / "tls.key")


def another(folder: Path) -> Authority:
    """An untrusted authority, in a subfolder."""
    path = folder / f"another-{os.urandom(4).hex()}"
    path.mkdir()
    return Authority(path)
