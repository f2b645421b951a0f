"""A certificate authority for a test, created with openssl."""

import pathlib
import ssl
import subprocess


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    def __init__(self, directory, name="authority"):
        self.directory = pathlib.Path(directory)
        self.name = name
        self.certificate = self.directory / f"{name}.pem"
        self.key = self.directory / f"{name}.key"
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
            *("-subj", f"/CN={name}", "-keyout", str(self.key), "-out", str(self.certificate)),
        )

    def sign(self, name, days=2, key_type=("ec", "-pkeyopt", "ec_paramgen_curve:P-256"), hosts="IP:127.0.0.1,DNS:localhost"):
        """Signs a certificate for this machine, or for other hosts; returns its file and that of its key."""
        certificate, key, request = (self.directory / f"{self.name}-{name}.{end}" for end in ("pem", "key", "csr"))
        openssl(*("req", "-newkey", *key_type, "-nodes", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)))
        extensions = self.directory / "extensions"
        extensions.write_text(f"subjectAltName={hosts}\n")
        openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self.key), "-CAcreateserial"),
            *("-days", str(days), "-extfile", str(extensions), "-out", str(certificate)),
        )
        return certificate, key

    def context(self, identity=None, newest=None):
        """The TLS context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if newest is not None:
            context.maximum_version = newest
        if identity is not None:
            context.load_cert_chain(*map(str, identity))
        return context
