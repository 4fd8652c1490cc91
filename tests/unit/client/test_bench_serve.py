#!/usr/bin/env python3
"""tercet bench serve against a small server made here, which answers well, or in one of several wrong ways."""
import json
import os
import subprocess
import sys
import threading
import time
import unittest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TERCET = sys.argv.pop(1)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def plain(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, body):
        self.chunk("data: %s\n\n" % json.dumps(body))

    def do_GET(self):
        self.server.seen.append(("GET", self.path, self.headers.get("Authorization")))
        self.plain(200, {"data": [{"id": "fake"}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.running += 1
            server.most = max(server.most, server.running)
            server.requests.append(request)
            number = len(server.requests)
            alone = server.running == 1
        try:
            self.answer(request, number, alone)
        finally:
            with server.lock:
                server.running -= 1

    def answer(self, request, number, alone):
        mode = self.server.mode
        if mode == "error" and number % 5 == 0:
            return self.plain(429, {"error": {"message": "the queue is full"}})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = request["max_tokens"]
        ids = [(request["seed"] * 7 + i) % 1000 for i in range(count)]
        if mode == "differs" and not alone:
            ids[3] += 1
        sent = ids + [ids[-1]] if mode == "doubled" and number == 2 else ids
        self.chunk(": a comment\n\n")
        for i, token in enumerate(sent):
            choice = {"index": 0, "text": "t%d " % token, "finish_reason": None}
            if request.get("return_token_ids"):
                choice["token_ids"] = [token]
            if mode == "cut" and number == 3 and i == 2:
                self.close_connection = True
                return None
            self.event({"choices": [choice]})
            time.sleep(self.server.pause)
        if mode != "unfinished":
            self.event({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": count}})
        self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        return None


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class BenchServe(unittest.TestCase):
    def setUp(self):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.lock = threading.Lock()
        self.server.running = self.server.most = 0
        self.server.requests, self.server.seen = [], []
        self.server.mode, self.server.pause = "good", 0.001
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def tearDown(self):
        self.server.shutdown()
        self.server.server_close()

    def bench(self, *args, mode="good"):
        self.server.mode = mode
        url = "http://127.0.0.1:%d" % self.server.server_address[1]
        env = dict(os.environ, OPENAI_API_KEY="secret")
        done = subprocess.run([TERCET, "bench", "serve", "--base-url", url, *args], capture_output=True, text=True,
                              timeout=60, env=env, check=False)
        line = json.loads(done.stdout) if done.stdout else None
        return done.returncode, line, done.stderr

    def test_closed_loop_counts_what_came(self):
        self.server.pause = 0.01  # so that they overlap, and tokens come one by one, on a busy machine as well
        status, line, text = self.bench("--num-prompts", "20", "--concurrency", "4", "--output-len", "6")
        self.assertEqual(status, 0, text)
        self.assertEqual((line["completed"], line["failed"]), (20, 0))
        self.assertEqual((line["total_input_tokens"], line["total_output_tokens"]), (100, 120))
        self.assertEqual(line["model"], "fake")
        self.assertEqual(self.server.most, 4)
        self.assertEqual(self.server.seen[0], ("GET", "/v1/models", "Bearer secret"))
        self.assertGreater(line["median_ttft_ms"], 0)
        self.assertGreater(line["median_tpot_ms"], 0.9)
        self.assertLessEqual(line["median_itl_ms"], line["p99_itl_ms"])
        self.assertGreater(line["median_e2el_ms"], line["median_ttft_ms"])
        self.assertAlmostEqual(line["output_throughput"], 120 / line["duration"], delta=0.05 * line["output_throughput"])
        self.assertEqual(len({r["seed"] for r in self.server.requests}), 20)
        self.assertIn("time to first token", text)

    def test_open_loop_keeps_its_rate(self):
        begin = time.monotonic()
        status, line, text = self.bench("--num-prompts", "30", "--request-rate", "60", "--output-len", "3")
        self.assertEqual(status, 0, text)
        self.assertEqual(line["completed"], 30)
        self.assertEqual(line["request_rate"], 60.0)
        self.assertTrue(0.2 < time.monotonic() - begin < 30)

    def test_check_finds_nothing_where_nothing_is(self):
        status, line, text = self.bench("--num-prompts", "24", "--concurrency", "6", "--output-len", "5", "--check",
                                        "--distinct", "4")
        self.assertEqual(status, 0, text)
        self.assertEqual((line["mismatches"], line["checked_distinct"]), (0, 4))
        self.assertEqual(len(self.server.requests), 28)
        first, fifth = [r for r in self.server.requests if r["seed"] == 1][:2]
        self.assertEqual(first, fifth)

    def test_check_finds_output_that_depends_on_company(self):
        status, line, text = self.bench("--num-prompts", "12", "--concurrency", "6", "--output-len", "5", "--check",
                                        mode="differs")
        self.assertEqual(status, 1)
        self.assertGreater(line["mismatches"], 0)
        self.assertIn("token 3 is", text)

    def test_a_doubled_token_is_a_failure(self):
        status, line, text = self.bench("--num-prompts", "4", "--concurrency", "1", "--check", mode="doubled")
        self.assertEqual(status, 1)
        self.assertEqual(line["failed"], 1)
        self.assertIn("65 token ids came, usage says 64", text)

    def test_errors_of_the_server_are_told(self):
        status, line, text = self.bench("--num-prompts", "10", "--concurrency", "2", "--output-len", "3", mode="error")
        self.assertEqual(status, 1)
        self.assertEqual((line["completed"], line["failed"]), (8, 2))
        self.assertIn("HTTP 429: the queue is full", text)

    def test_a_connection_cut_in_the_middle_is_told(self):
        status, line, text = self.bench("--num-prompts", "4", "--concurrency", "1", "--output-len", "5", mode="cut")
        self.assertEqual((status, line["failed"]), (1, 1))
        self.assertIn("closed the connection", text)

    def test_a_stream_without_an_end_is_told(self):
        status, line, text = self.bench("--num-prompts", "1", "--output-len", "5", mode="unfinished")
        self.assertEqual((status, line["failed"]), (1, 1))
        self.assertIn("without a finish reason", text)

    def test_nobody_there(self):
        port = self.server.server_address[1]
        done = subprocess.run([TERCET, "bench", "serve", "--base-url", "http://127.0.0.1:1"], capture_output=True,
                              text=True, timeout=30, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot connect", done.stderr)
        self.assertNotEqual(port, 1)

    def test_wrong_lines(self):
        for args, says in ((["--base-url", "https://x"], "must begin with http://"), (["--num-prompts", "0"], "--num-prompts"),
                           (["--concurrency", "x"], "--concurrency"), (["more"], "unexpected word")):
            done = subprocess.run([TERCET, "bench", "serve", *args], capture_output=True, text=True, timeout=30,
                                  check=False)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(says, done.stderr)


if __name__ == "__main__":
    unittest.main()
