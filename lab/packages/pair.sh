# Two ends of ib_write_bw under `bowline run`, on loopback. Run in a clean root. A client that
# starts before the server listens fails at once and is started again.
bowline run --device bl0=127.0.0.1 -- ib_write_bw -d bl0 -n 500 >/tmp/server 2>&1 &
server=$!
tries=0
until bowline run --device bl0=127.0.0.2 --report -- ib_write_bw -d bl0 -n 500 127.0.0.1 \
    >/tmp/client 2>&1; do
  tries=$((tries + 1))
  if [ "$tries" -ge 100 ] || ! kill -0 "$server"; then
    cat /tmp/server /tmp/client
    kill "$server"
    exit 1
  fi
  sleep 0.1
done
wait "$server" || { cat /tmp/server; exit 1; }
cat /tmp/client
