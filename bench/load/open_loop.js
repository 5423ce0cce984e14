// A constant arrival rate of one prebuilt request; prints one JSON object. With SPREAD each request
// is late by up to so many seconds at random, which makes arrivals that know nothing of each other,
// as those of a Poisson process. Until then, and after SECONDS, the rate is lower: what is sent in
// these times is not counted.
import { sleep } from "k6";
import exec from "k6/execution";
import http from "k6/http";
import { Counter, Trend } from "k6/metrics";

const body = open(__ENV.BODY, "b");
const answered = new Trend("answered", true);
const refused = new Counter("refused");
const failed = new Counter("failed");

const [rate, seconds] = [Number(__ENV.RATE), Number(__ENV.SECONDS)];
const spread = Number(__ENV.SPREAD || 0);

export const options = {
  scenarios: {
    asked: {
      executor: "constant-arrival-rate",
      rate: Math.round(rate * 10),
      timeUnit: "10s",
      preAllocatedVUs: 50 + Math.ceil(rate * (spread + 2)),
      maxVUs: 400 + 2 * Math.ceil(rate * spread),
      duration: `${seconds}s`,
      gracefulStop: "60s",
    },
  },
  summaryTrendStats: ["med", "p(99)", "count"],
};

export default function () {
  if (spread) sleep(spread * Math.random());
  const after = (Date.now() - exec.scenario.startTime) / 1000;
  const response = http.post(__ENV.URL, body, {
    headers: { "Content-Type": "application/json" },
    timeout: "60s",
  });
  if (response.status === 429) refused.add(1);
  else if (response.status !== 200) failed.add(1);
  else if (after >= spread && after <= seconds) answered.add(response.timings.duration);
}

export function handleSummary(data) {
  const of = (name) => (data.metrics[name] ? data.metrics[name].values : { count: 0 });
  return {
    stdout: JSON.stringify({
      seconds: seconds - spread,
      answered: of("answered").count,
      p50: of("answered").med,
      p99: of("answered")["p(99)"],
      refused: of("refused").count,
      failed: of("failed").count,
      not_sent: of("dropped_iterations").count,
    }),
  };
}
