"""The host's own traffic: a TCP and a UDP exchange, and a UDP datagram for a port nobody has.

usage: probe.py echo ADDRESS | probe.py ask ADDRESS
"""

import socket
import sys
import threading

PORT = 18600


def echo(addr):
    tcp = socket.create_server((addr, PORT))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((addr, PORT))

    def answer():
        while True:
            data, peer = udp.recvfrom(2048)
            udp.sendto(data, peer)

    threading.Thread(target=answer, daemon=True).start()
    print("ready", flush=True)
    while True:
        connection, _ = tcp.accept()
        connection.sendall(connection.recv(2048))
        connection.close()


def ask(addr):
    with socket.create_connection((addr, PORT), timeout=5) as tcp:
        tcp.sendall(b"tcp")
        assert tcp.recv(16) == b"tcp", "TCP"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(5)
        udp.sendto(b"udp", (addr, PORT))
        assert udp.recv(16) == b"udp", "UDP"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(5)
        udp.connect((addr, PORT + 1))
        udp.send(b"?")
        try:
            udp.recv(16)
        except ConnectionRefusedError:
            print("TCP and UDP answered, ICMP as well")


if __name__ == "__main__":
    {"echo": echo, "ask": ask}[sys.argv[1]](sys.argv[2])
