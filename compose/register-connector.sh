#!/bin/sh
# Registers the connector, or changes it where it is registered, and waits until its tables' topics are there.
#   CONNECT_URL        Kafka Connect's REST API
#   CONNECTOR_CONFIG   the configuration; that of docker-compose.yml by default
set -eu

connector="$CONNECT_URL/connectors/shop"
# While its workers find each other, Kafka Connect answers 409.
curl --fail --silent --show-error --retry 20 --retry-delay 1 --retry-all-errors --output /dev/null --request PUT --header 'Content-Type: application/json' \
    --data "@${CONNECTOR_CONFIG:-/compose/connector.json}" "$connector/config"

for topic in shop.public.customers shop.public.orders shop.public.order_items; do
    tries=0
    until curl --fail --silent "$connector/topics" | grep --quiet "\"$topic\""; do
        tries=$((tries + 1))
        if [ "$tries" -ge 60 ]; then
            echo "Debezium has not written to $topic within a minute:" >&2
            curl --silent "$connector/status" >&2
            exit 1
        fi
        sleep 1
    done
    echo "$topic is there"
done
