-- A job that ends in `failed` without a worker having run it to its end: malformed, expired, revoked, stalled.

-- The job's hash must exist. event: 'failed', 'expired' or 'revoked'; processed_on: when it began to run, if it did.
G.end_failed = function(q, id, now, reason, event, processed_on)
  local now_text = G.int(now)
  redis.call('ZADD', q.failed, now_text, id)
  redis.call('HSET', q.J .. id, 'state', 'failed', 'failedReason', reason, 'finishedOn', now_text)
  if event == 'failed' then
    G.emit(q.events, 'failed', id, 'failedReason', reason)
  else
    G.emit(q.events, event, id)
  end
  -- What an earlier attempt left there is not why the job failed in the end.
  redis.call('HDEL', q.J .. id, 'failedType', 'stacktrace')
  local started = tonumber(processed_on or '')
  G.metric(q.metrics_failed, now, 1, started and math.max(0, now - started) or 0)
end
