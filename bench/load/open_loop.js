// A constant arrival rate of one prebuilt request, or, with CALLERS, so many that ask again as soon
// as they are answered; prints one JSON object. With SPREAD each request is late by up to so many
// seconds at random, which makes arrivals that know nothing of each other: a Poisson process.
import { sleep } from "k6";
import http from "k6/http";
import { Counter, Trend } from "k6/metrics";

const body = open(__ENV.BODY, "b");
const refused = new Trend("refused", true);
const answered = new Trend("answered", true);
const failed = new Counter("failed");

const spread = Number(__ENV.SPREAD || 0);

const closed = {
  executor: "constant-vus",
  vus: Number(__ENV.CALLERS),
};

const arriving = {
  executor: "constant-arrival-rate",
  rate: Math.round(Number(__ENV.RATE) * 10),
  timeUnit: "10s",
  preAllocatedVUs: 200 + Math.ceil(__ENV.RATE * spread),
  maxVUs: 400 + 2 * Math.ceil(__ENV.RATE * spread),
};

export const options = {
  scenarios: {
    asked: {
      ...(__ENV.CALLERS ? closed : arriving),
      duration: `${__ENV.SECONDS}s`,
      gracefulStop: "60s",
    },
  },
  summaryTrendStats: ["med", "p(99)", "max", "count"],
};

export default function () {
  if (spread) sleep(spread * Math.random());
  const response = http.post(__ENV.URL, body, {
    headers: { "Content-Type": "application/json" },
    timeout: "60s",
  });
  if (response.status === 200) answered.add(response.timings.duration);
  else if (response.status === 429) refused.add(response.timings.duration);
  else failed.add(1);
}

export function handleSummary(data) {
  const of = (name) => (data.metrics[name] ? data.metrics[name].values : { count: 0 });
  const dropped = of("dropped_iterations").count;
  return {
    stdout: JSON.stringify({
      seconds: spread ? Number(__ENV.SECONDS) : data.state.testRunDurationMs / 1000,
      answered: of("answered").count,
      p50: of("answered").med,
      p99: of("answered")["p(99)"],
      refused: of("refused").count,
      refused_p50: of("refused").med,
      refused_p99: of("refused")["p(99)"],
      failed: of("failed").count,
      not_sent: dropped,
    }),
  };
}
