-- Fail a job that no worker ran to its end: malformed, expired, revoked, stalled.

-- The job's hash must exist. event: 'failed', 'expired' or 'revoked'. processed_on: when it started to run, if it
-- did. attempt: {worker, started} if an attempt was running.
G.end_failed = function(q, id, now, reason, event, processed_on, attempt)
  local now_text, history, fields = G.int(now), nil, nil
  if G.failures then history, fields = G.failures.ended(q, id, now, reason, attempt) end
  if G.dead_letter then G.dead_letter(q, id, event, reason, nil, history) end
  redis.call('ZADD', q.failed, now_text, id)
  G.set(q, id, 'state', 'failed', 'failedReason', reason, 'finishedOn', now_text)
  if fields then G.set(q, id, unpack(fields)) end
  G.note_state(q, id, 'failed', now, attempt and attempt.worker)
  G.results.failed(q, id, now_text)
  if event == 'failed' then
    G.emit(q.events, 'failed', id, 'failedReason', reason)
  else
    G.emit(q.events, event, id)
  end
  G.budgets.expire_with_root(q, id, now)
  -- Fields of an earlier attempt do not explain the final failure.
  redis.call('HDEL', q.J .. id, 'failedType', 'stacktrace')
  G.report_to_scheduler(q, id, now)
  -- A cancelled job has not failed: it is not counted in the metrics.
  if event ~= 'revoked' then
    G.metric_of_job(q.metrics_failed, now, processed_on)
  end
  G.flows.child_ended(q, id, G.flows.FAILED, reason, now)
end

-- The same for a job that may belong to a group: its slot or turn goes to the next job.
G.end_job = function(q, id, now, reason, event, processed_on, attempt)
  local h = G.pick(q.J .. id, 'state', 'groupKey', 'orderingSeq', 'slot')
  G.end_failed(q, id, now, reason, event, processed_on, attempt)
  if h.state == 'waiting-children' then redis.call('ZREM', q.waiting_children, id) end
  if h.groupKey then G.groups.leave_group(q, id, h, now) end
  G.retain_failed(q, id, now)
end
