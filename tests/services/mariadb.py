"""MariaDB: a server of the tests' own, asked through its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.services.processes import Process, ServiceError, Unavailable, free_ports, is_listening, unprivileged_user
from tests.services.server import LocalServer

PROGRAMS = ("mariadbd", "mariadb-install-db", "mariadb")
START_SECONDS = 60
USER, PASSWORD = "auditor", "hush-hush-42"


@dataclass(frozen=True, slots=True)
class MariaDB:
    """A server with a user who may read and write everything."""

    port: int
    socket: Path
    user: str = USER
    password: str = PASSWORD

    def execute(self, script: str, database: str = "mysql") -> str:
        """Run a script as the server's administrator, with UTC as time zone, and return what it prints.

        Raises:
            ServiceError: A statement failed.
        """
        command = ["mariadb", "--no-defaults", "--socket", str(self.socket), "--user=root", "--batch", "--binary-mode"]
        done = subprocess.run(
            [*command, "--default-character-set=utf8mb4", "--skip-column-names", database],
            input=f"SET time_zone = '+00:00', sql_mode = '';\n{script}",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise ServiceError(done.stderr)
        return done.stdout


class LocalMariaDB(LocalServer):
    """A server with a data folder of its own, on loopback."""

    START_SECONDS = START_SECONDS

    def __init__(self, *, log: Path) -> None:
        """Make the data folder.

        Raises:
            Unavailable: MariaDB is not installed or cannot run here.
            ServiceError: The data folder could not be made.
        """
        missing = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
        if missing:
            raise Unavailable(f"{', '.join(missing)} not installed (Debian and Ubuntu: package mariadb-server)")
        user = unprivileged_user()
        [self.port] = free_ports(1)
        # Not below the tests' folders: the path of a socket must be short, and another user must get there.
        self.folder = Path(tempfile.mkdtemp(prefix="stream_merge-mariadb-"))
        if user:
            shutil.chown(self.folder, user)
        environ = {**os.environ, "PATH": _path()}
        data = ["--no-defaults", f"--datadir={self.folder}/data"]
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        made = Process(
            "mariadb-install-db", ["mariadb-install-db", *data, *options], log=log, environ=environ, user=user
        )
        made.start()
        if made.wait(timeout=START_SECONDS) != 0:
            raise ServiceError(f"mariadb-install-db ended with {made.exit_code}\n{made.last_lines()}")
        settings = {
            "port": self.port,
            "bind-address": "127.0.0.1",
            "socket": self.socket,
            "pid-file": self.folder / "pid",
            "character-set-server": "utf8mb4",
            # Not UTC, so that times show whether a session takes care of its zone.
            "default-time-zone": "-03:30",
            "innodb-flush-log-at-trx-commit": 0,
        }
        self.process = Process(
            "MariaDB",
            ["mariadbd", *data, *[f"--{name}={value}" for name, value in settings.items()]],
            log=log,
            environ=environ,
            user=user,
        )

    @property
    def socket(self) -> Path:
        """The socket of its administrator."""
        return self.folder / "socket"

    def start(self) -> None:
        """Start it and make its user."""
        super().start()
        self.mariadb().execute(f"CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO {USER};")

    def mariadb(self) -> MariaDB:
        """Return how to reach it."""
        return MariaDB(self.port, self.socket)

    def answers(self) -> bool:
        """Return whether it takes connections."""
        return self.socket.exists() and is_listening("127.0.0.1", self.port)


def _path() -> str:
    # Debian has the server among the programs of the administrator.
    return f"{os.environ.get('PATH', '')}:/usr/sbin"
