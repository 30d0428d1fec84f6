"""A shop's database under a seeded load of several clients, with everything that makes change data hard to follow.

Each client draws from a generator of its own, so that what it tries is the same for one seed; how the clients
interleave, and with it which transactions fail for a lock or a key that is gone, is not.
"""

from __future__ import annotations

import base64
import json
import random
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg

from tests.services.postgres import Database

if TYPE_CHECKING:
    Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

SCHEMA = (
    "CREATE TYPE order_status AS ENUM ('new', 'paid', 'shipped', 'cancelled')",
    """CREATE TABLE customers (
        id bigint PRIMARY KEY, name text NOT NULL, email varchar(120), address jsonb, balance numeric(12, 2) NOT NULL,
        active bool NOT NULL, birthday date, created_at timestamptz NOT NULL, tags text[])""",
    """CREATE TABLE orders (
        order_id uuid PRIMARY KEY, customer_id bigint NOT NULL, status order_status NOT NULL, placed_at timestamp,
        total numeric(14, 4), note text)""",
    """CREATE TABLE order_items (
        order_id uuid, line_no int, sku text NOT NULL, quantity int NOT NULL, price numeric(10, 2),
        PRIMARY KEY (order_id, line_no))""",
    "CREATE TABLE notes (id bigint PRIMARY KEY, title text NOT NULL, body text, photo bytea, score float8)",
    "CREATE TABLE visits (page text, visitor text, seconds int, detail text)",
    # Stored beside the row uncompressed, so that an update of other columns does not send them.
    "ALTER TABLE customers ALTER address SET STORAGE EXTERNAL, ALTER tags SET STORAGE EXTERNAL",
    "ALTER TABLE notes ALTER body SET STORAGE EXTERNAL, ALTER photo SET STORAGE EXTERNAL",
    "ALTER TABLE visits ALTER detail SET STORAGE EXTERNAL",
    "ALTER TABLE visits REPLICA IDENTITY FULL",
)
NEW_TABLE = "CREATE TABLE reviews (order_id uuid PRIMARY KEY, stars smallint, comment text)"

FIRST_TABLES = ("customers", "orders", "order_items", "notes", "visits")
"""The tables that there are from the beginning; `visits` has no key."""
TABLES = (*FIRST_TABLES, "reviews")

NUM_CUSTOMERS, NUM_ORDERS, NUM_NOTES, NUM_VISITS = 40, 60, 15, 20
NUM_FAST_TRANSACTIONS = 1000
STATUSES = ("new", "paid", "shipped", "cancelled")
WORDS = (
    "",
    "plain",
    'O\'Brien "quoted" \\ back',
    "tab\tnew\nline\r\u0001",
    "naïve café",
    "日本語",
    "🙂👩‍👧",
    "null",
    '{"a": 1}',
)
PAGES = ("/", "/cart", "/help")

ACTIONS = {
    "place_order": 20,
    "change_status": 10,
    "update_a_customer_many_times": 8,
    "update_a_customer_in_many_transactions": 4,
    "delete_an_order": 6,
    "delete_and_insert_a_customer": 8,
    "change_a_customers_key": 8,
    "swap_two_customers_keys": 4,
    "change_an_items_key": 4,
    "retitle_a_note": 8,
    "rewrite_a_note": 6,
    "change_a_notes_key": 6,
    "roll_back": 6,
    "roll_back_to_a_savepoint": 3,
    "change_nothing": 2,
    "visit_pages": 8,
    "change_visits": 6,
    "use_new_schema": 8,
}
"""What clients do, methods of `Client`, and how often in relation to each other."""

LOST = (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation, psycopg.errors.LockNotAvailable)
"""What a client may meet because of another one; its transaction is rolled back, and it goes on."""


class Values:
    """Random values of the columns."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def word(self) -> str:
        return self.random.choice(WORDS)

    def text(self, length: int) -> str:
        return base64.b64encode(self.random.randbytes(length))[:length].decode()

    def long_text(self) -> str:
        return self.text(self.random.randrange(8300, 9000))

    def uuid(self) -> str:
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def number(self, digits: int, scale: int) -> str:
        value = self.random.choice([0, 1, -1, self.random.randrange(-(10**digits) + 1, 10**digits)])
        return f"{'-' if value < 0 else ''}{abs(value) // 10**scale}.{abs(value) % 10**scale:0{scale}d}"

    def moment(self) -> datetime:
        microseconds = self.random.choice([0, 1, 123000, 999999, self.random.randrange(10**6)])
        seconds = self.random.randrange(60 * 366 * 86400)
        # Before 1970, too: there the count of microseconds is negative.
        return datetime(1965, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=seconds, microseconds=microseconds)

    def customer(self, number: int) -> dict[str, Any]:
        is_big = self.random.random() < 0.3
        address = {"street": self.word(), "no": self.random.randrange(400), "flag": self.random.choice([True, None])}
        tags = [self.text(300) for _ in range(9)] if is_big else [self.word(), None]
        return {
            "id": number,
            "name": f"{self.word()}{number}",
            "email": self.random.choice([None, f"u{number}@example.org"]),
            "address": json.dumps({**address, "blob": self.text(8400)} if is_big else address),
            "balance": self.number(12, 2),
            "active": self.random.random() < 0.7,
            "birthday": self.random.choice([None, self.moment().date()]),
            "created_at": self.moment(),
            "tags": self.random.choice([None, [], tags]),
        }

    def order(self, order_id: str) -> dict[str, Any]:
        return {
            "order_id": order_id,
            "customer_id": self.random.choice([self.random.randrange(NUM_CUSTOMERS), 2**53 + 1, 2**63 - 1]),
            "status": "new",
            "placed_at": self.random.choice([None, self.moment().replace(tzinfo=None)]),
            "total": self.random.choice([None, self.number(13, 4)]),
            "note": self.random.choice([None, self.word()]),
        }

    def item(self, order_id: str, line_no: int) -> dict[str, Any]:
        return {
            "order_id": order_id,
            "line_no": line_no,
            "sku": f"SKU-{self.random.randrange(100):03d}",
            "quantity": self.random.randrange(1, 100),
            "price": self.random.choice([None, self.number(8, 2)]),
        }

    def note(self, number: int) -> dict[str, Any]:
        return {
            "id": number,
            "title": self.word(),
            "body": self.long_text(),
            "photo": self.random.choice([None, b"", self.random.randbytes(40), self.random.randbytes(8500)]),
            "score": self.random.choice([None, 0.1, -1.5e300, float("inf"), self.random.random()]),
        }

    def visit(self) -> dict[str, Any]:
        # Few different rows, so that many are equal.
        detail = self.random.choice([None, "short", "d" * 8500])
        return {
            "page": self.random.choice(PAGES),
            "visitor": "v",
            "seconds": self.random.randrange(3),
            "detail": detail,
        }


def insert(connection: Connection, table: str, row: dict[str, Any]) -> None:
    """Insert a row."""
    places = ", ".join(f"%({name})s" for name in row)
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", row)


def create_shop(database: Database, *, seed: int, publication: str) -> list[str]:
    """Create the tables, their first rows and a publication of all tables; return the ids of the orders."""
    values = Values(seed)
    database.execute(*SCHEMA, f'CREATE PUBLICATION "{publication}" FOR ALL TABLES')
    orders = [values.uuid() for _ in range(NUM_ORDERS)]
    with database.connect() as connection, connection.transaction():
        for number in range(NUM_CUSTOMERS):
            insert(connection, "customers", values.customer(number))
        for order_id in orders:
            insert(connection, "orders", values.order(order_id))
            for line_no in range(1, values.random.randrange(2, 4)):
                insert(connection, "order_items", values.item(order_id, line_no))
        for number in range(NUM_NOTES):
            insert(connection, "notes", values.note(number))
        for _ in range(NUM_VISITS):
            insert(connection, "visits", values.visit())
    return orders


class Client:
    """One of the clients: what it draws, it does in a transaction of its own."""

    def __init__(self, number: int, connection: Connection, orders: list[str], seed: int) -> None:
        self.connection = connection
        self.values = Values(seed * 1000 + number)
        self.random = self.values.random
        self.orders = list(orders)
        self.last_id = 10_000_000 * number
        self.has_new_schema = False

    def act(self) -> str:
        """Run one transaction, or a few, and return its name; with `!` where another client was in the way."""
        [name] = self.random.choices(list(ACTIONS), list(ACTIONS.values()))
        try:
            getattr(self, name)()
        except LOST:
            return f"{name}!"
        return name

    def new_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def any_customer(self) -> int:
        return self.random.randrange(NUM_CUSTOMERS)

    def run(self, statement: str, *parameters: Any) -> int:
        return self.connection.execute(statement, parameters).rowcount

    def place_order(self) -> None:
        order_id = self.values.uuid()
        self.orders.append(order_id)
        with self.connection.transaction():
            insert(self.connection, "orders", self.values.order(order_id))
            for line_no in range(1, self.random.randrange(2, 5)):
                insert(self.connection, "order_items", self.values.item(order_id, line_no))

    def change_status(self) -> None:
        status, note, order_id = self.random.choice(STATUSES), self.values.word(), self.random.choice(self.orders)
        self.run("UPDATE orders SET status = %s, note = %s WHERE order_id = %s", status, note, order_id)

    def update_a_customer_many_times(self) -> None:
        customer = self.any_customer()
        with self.connection.transaction():
            for _ in range(self.random.randrange(2, 5)):
                self.run("UPDATE customers SET balance = %s WHERE id = %s", self.values.number(12, 2), customer)

    def update_a_customer_in_many_transactions(self) -> None:
        customer = self.any_customer()
        for _ in range(4):
            self.run("UPDATE customers SET active = NOT active, balance = %s WHERE id = %s", "1.10", customer)

    def delete_an_order(self) -> None:
        order_id = self.random.choice(self.orders)
        with self.connection.transaction():
            self.run("DELETE FROM order_items WHERE order_id = %s", order_id)
            self.run("DELETE FROM orders WHERE order_id = %s", order_id)

    def delete_and_insert_a_customer(self) -> None:
        customer = self.any_customer()
        row = self.values.customer(customer)
        if self.random.random() < 0.5:
            self.run("DELETE FROM customers WHERE id = %s", customer)
            insert(self.connection, "customers", row)
        else:
            with self.connection.transaction():
                self.run("DELETE FROM customers WHERE id = %s", customer)
                insert(self.connection, "customers", row)

    def change_a_customers_key(self) -> None:
        customer, replacement = self.any_customer(), self.values.customer(self.new_id())
        # Address and tags may be stored beside the row: the change does not send them.
        self.run("UPDATE customers SET id = %s WHERE id = %s", replacement["id"], customer)
        insert(self.connection, "customers", {**replacement, "id": customer})

    def swap_two_customers_keys(self) -> None:
        first, second = self.random.sample(range(NUM_CUSTOMERS), 2)
        between = self.new_id()
        with self.connection.transaction():
            for old, new in ((first, between), (second, first), (between, second)):
                self.run("UPDATE customers SET id = %s WHERE id = %s", new, old)

    def change_an_items_key(self) -> None:
        order_id = self.random.choice(self.orders)
        self.run("UPDATE order_items SET line_no = line_no + 100 WHERE order_id = %s", order_id)

    def retitle_a_note(self) -> None:
        note = self.random.randrange(NUM_NOTES)
        with self.connection.transaction():
            for _ in range(self.random.randrange(1, 3)):
                self.run("UPDATE notes SET title = %s WHERE id = %s", self.values.word(), note)

    def rewrite_a_note(self) -> None:
        note, body = self.random.randrange(NUM_NOTES), self.random.choice([None, "", "short", self.values.long_text()])
        with self.connection.transaction():
            self.run("UPDATE notes SET title = %s WHERE id = %s", self.values.word(), note)
            self.run("UPDATE notes SET body = %s WHERE id = %s", body, note)
            self.run("UPDATE notes SET score = %s WHERE id = %s", self.random.random(), note)

    def change_a_notes_key(self) -> None:
        note, new = self.random.randrange(NUM_NOTES), self.new_id()
        with self.connection.transaction():
            self.run("UPDATE notes SET id = %s WHERE id = %s", new, note)
            if self.random.random() < 0.5:
                self.run("UPDATE notes SET title = title || '!' WHERE id = %s", new)
        if self.random.random() < 0.6:
            self.run("UPDATE notes SET id = %s WHERE id = %s", note, new)
        else:
            insert(self.connection, "notes", self.values.note(note))

    def roll_back(self) -> None:
        with self.connection.transaction(force_rollback=True):
            self.run("UPDATE customers SET name = 'ROLLED BACK' WHERE id = %s", self.any_customer())
            self.run("DELETE FROM orders WHERE order_id = %s", self.random.choice(self.orders))
            insert(self.connection, "visits", {**self.values.visit(), "page": "ROLLED BACK"})

    def roll_back_to_a_savepoint(self) -> None:
        customer = self.any_customer()
        with self.connection.transaction():
            self.run("UPDATE customers SET email = 'before' WHERE id = %s", customer)
            with self.connection.transaction(force_rollback=True):
                self.run("UPDATE customers SET email = 'ROLLED BACK' WHERE id = %s", customer)
            self.run("UPDATE customers SET name = 'after' WHERE id = %s", self.any_customer())

    def change_nothing(self) -> None:
        self.run("UPDATE customers SET address = address WHERE id = %s", self.any_customer())
        self.run("UPDATE orders SET order_id = order_id WHERE order_id = %s", self.random.choice(self.orders))

    def visit_pages(self) -> None:
        row = self.values.visit()
        with self.connection.transaction():
            for _ in range(self.random.randrange(1, 4)):
                insert(self.connection, "visits", row)

    def change_visits(self) -> None:
        one = "ctid IN (SELECT ctid FROM visits WHERE page = %s ORDER BY ctid LIMIT 1 FOR UPDATE SKIP LOCKED)"
        page, seconds = self.random.choice(PAGES), self.random.randrange(3)
        if self.random.random() < 0.5:
            self.run(f"DELETE FROM visits WHERE {one}", page)
        else:
            self.run(f"UPDATE visits SET seconds = %s WHERE {one}", seconds, page)

    def use_new_schema(self) -> None:
        phone, order_id, stars = self.values.word(), self.random.choice(self.orders), self.random.randrange(6)
        if not self.has_new_schema:
            return
        self.run("UPDATE customers SET phone = %s WHERE id = %s", phone, self.any_customer())
        self.run(
            "INSERT INTO reviews VALUES (%s, %s, %s) ON CONFLICT (order_id) DO UPDATE SET stars = excluded.stars",
            order_id,
            stars,
            self.values.word(),
        )


class Load:
    """Clients that change a shop's database until they are told to end."""

    def __init__(self, database: Database, orders: list[str], *, seed: int, num_clients: int = 4, pause: float) -> None:
        """Prepare the clients.

        Args:
            database: A database that `create_shop` has filled.
            orders: The ids of its orders.
            seed: Decides what each client draws.
            num_clients: How many there are, each with a session and a thread.
            pause: Seconds that a client waits between two transactions, on average; ten times as long once all have had
                `NUM_FAST_TRANSACTIONS`, so that a slow machine does not have more to merge than a fast one.
        """
        self.database = database
        self.pause = pause
        self.done: Counter[str] = Counter()
        """How often each action was carried out; with `!` behind its name, how often another client was in the way."""
        self._orders = orders
        self._seed = seed
        self._num_clients = num_clients
        self._clients: list[Client] = []
        self._faults: list[Exception] = []
        self._ended = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the clients for the length of the block.

        Raises:
            Exception: What the first client that failed has raised.
        """
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(1, self._num_clients + 1)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()
        if self._faults:
            raise self._faults[0]

    def _run(self, number: int) -> None:
        try:
            with self.database.connect() as connection:
                connection.execute("SET lock_timeout = '10s'")
                client = Client(number, connection, self._orders, self._seed)
                self._clients.append(client)
                while not self._ended.wait(client.random.uniform(0, 2) * self._pause()):
                    name = client.act()
                    with self._lock:
                        self.done[name] += 1
        except Exception as fault:  # noqa: BLE001 - it is raised where the load is waited for
            self._faults.append(fault)

    def _pause(self) -> float:
        return self.pause if self.done.total() < NUM_FAST_TRANSACTIONS else 10 * self.pause

    def change_schema(self) -> None:
        """Add a column and a table, which the clients use from then on.

        The column has no default: PostgreSQL would give it to the rows that are there without an event.
        """
        self.database.execute("ALTER TABLE customers ADD COLUMN phone text", NEW_TABLE)
        for client in self._clients:
            client.has_new_schema = True
