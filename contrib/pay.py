#!/usr/bin/env python3
"""Pays through gateways by HTTP and nothing else, a payment under a key: for `tercel soak --tiers --payer`.

    pay.py FILE [PAYMENTS [THREADS]]

FILE has a gateway's address a line, and is read again before each attempt. A payment that was not answered
with 200 is sent again with the same key, at the next gateway. The number of each payment that was answered is
printed on a line. Ends with 1 if an answer says that nobody knows whether a payment was made (409), or that a
key was used otherwise (422), and with 2 if a payment is not answered within a minute."""
import http.client, itertools, json, os, sys, threading, time

ANSWER_SECONDS, GIVE_UP_SECONDS = 10, 60


def attempt(gateway, key):
    """The status and the number of the payment; (0, None) if there was no answer."""
    connection = http.client.HTTPConnection(gateway, timeout=ANSWER_SECONDS)
    try:
        head = {"Idempotency-Key": key, "Content-Type": "application/json"}
        connection.request("POST", "/v1/services/AccountManager/pay", "[1]", head)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status, json.loads(body)["gives"] if answer.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return 0, None
    finally:
        connection.close()


def pay(file, key, turn):
    end = time.monotonic() + GIVE_UP_SECONDS
    for tried in itertools.count(turn):
        with open(file) as lines:
            gateways = lines.read().split()
        status, number = attempt(gateways[tried % len(gateways)], key)
        if status == 200:
            return number
        if status in (409, 422) or 400 <= status < 500 and status != 429:
            sys.exit(f"{key}: a gateway answered {status}")
        if time.monotonic() > end:
            print(f"{key} was not answered within {GIVE_UP_SECONDS} s", file=sys.stderr)
            os._exit(2)


def main():
    file = sys.argv[1]
    payments, threads = (int(word) for word in (sys.argv[2:] + ["10000", "4"][len(sys.argv) - 2 :])[:2])
    failed = []

    def work(thread):
        try:
            for i in range(thread, payments, threads):
                number = pay(file, f"pay.py-{os.getpid()}-{i}", i)
                # One write a line, so that lines of threads do not mix.
                sys.stdout.write(f"{number}\n")
                sys.stdout.flush()
        except BaseException as e:
            failed.append(f"{type(e).__name__}: {e}")

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        print(failed[0], file=sys.stderr)
        sys.exit(1)


main()
