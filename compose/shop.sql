-- The database that the pipeline reads. TOAST columns, deletes, changed keys: what change data capture has to stand.
CREATE TABLE customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email varchar(120),
    notes text,
    balance numeric(12, 2) NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now()
);
-- Values of some size lie outside their rows, and Debezium does not send them again when they did not change.
ALTER TABLE customers ALTER notes SET STORAGE EXTERNAL;

CREATE TABLE orders (
    order_id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    status text NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE order_items (
    order_id bigint NOT NULL,
    line_no int NOT NULL,
    sku text NOT NULL,
    quantity int NOT NULL,
    price numeric(10, 2) NOT NULL,
    PRIMARY KEY (order_id, line_no)
);

CREATE SEQUENCE order_ids;

-- Places orders and changes rows at random, each in a transaction of its own:
--   docker compose exec postgres psql --username postgres shop --command 'CALL change_rows(1000)'
CREATE PROCEDURE change_rows(number int) LANGUAGE plpgsql AS $$
DECLARE
    placed bigint;
    chosen bigint;
    newest bigint;
BEGIN
    FOR step IN 1..number LOOP
        SELECT last_value INTO newest FROM order_ids;
        chosen := 1 + floor(random() * 1000);
        CASE floor(random() * 10)::int
            WHEN 0, 1, 2, 3 THEN
                placed := nextval('order_ids');
                INSERT INTO orders (order_id, customer_id, status) VALUES (placed, chosen, 'new');
                INSERT INTO order_items
                SELECT placed, line_no, 'SKU-' || floor(random() * 100), 1 + floor(random() * 9), random() * 100
                FROM generate_series(1, 1 + floor(random() * 4)::int) AS line_no;
            WHEN 4, 5, 6 THEN
                UPDATE customers SET balance = balance + random() * 10 WHERE id = chosen;
            WHEN 7, 8 THEN
                UPDATE orders SET status = 'shipped' WHERE order_id = 1 + floor(random() * newest);
            ELSE
                placed := 1 + floor(random() * newest);
                DELETE FROM order_items WHERE order_id = placed;
                DELETE FROM orders WHERE order_id = placed;
        END CASE;
        COMMIT;
    END LOOP;
END
$$;

INSERT INTO customers (id, name, email, notes, balance)
SELECT id, 'Customer ' || id, 'customer' || id || '@example.org', repeat(md5(id::text), 100), (id % 100) * 10
FROM generate_series(1, 1000) AS id;

INSERT INTO orders (order_id, customer_id, status)
SELECT nextval('order_ids'), 1 + number % 1000, 'new' FROM generate_series(1, 2000) AS number;

INSERT INTO order_items
SELECT order_id, line_no, 'SKU-' || (order_id * line_no) % 100, 1 + order_id % 9, (order_id % 500) / 5.0
FROM orders CROSS JOIN generate_series(1, 2) AS line_no;
