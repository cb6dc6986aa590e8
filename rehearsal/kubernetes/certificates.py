"""The certificates of a control plane on this machine: one authority, a certificate for each program."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = timedelta(days=3650)


@dataclass(frozen=True)
class KeyPair:
    """Paths of a certificate and of its private key, PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its own is `ca.crt` of the folder, and its key stays in memory alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "orch rehearsal")])
        builder = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def issue(self, name: str, *, organization: str = "", hosts: Sequence[str] = ()) -> KeyPair:
        """A certificate of `name` for listening on `hosts` (names and addresses) and for asking."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if organization:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        builder = (
            self._builder(x509.Name(attributes), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        pair = KeyPair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        pair.certificate.write_bytes(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        write_key(pair.key, key)
        return pair

    def _builder(self, subject: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + LIFE)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )


def service_account_keys(folder: Path) -> KeyPair:
    """The key that signs tokens of service accounts, and its public key in place of a certificate."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pair = KeyPair(folder / "service-accounts.pub", folder / "service-accounts.key")
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    pair.certificate.write_bytes(public)
    write_key(pair.key, key)
    return pair


def write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    """Write a private key that nobody else may read."""
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
