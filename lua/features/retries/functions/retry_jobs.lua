-- retry_jobs: failed jobs run again, oldest first, a bounded piece a call.
-- KEYS 1 meta   ARGV 1 packed {batch, want, left, total}   -> packed {retried, left}
-- want: how many more are wanted, 0 = all   left: of how many ids the failed ones are still to be looked through; -1 at
--   first, then what the call before answered; 0 = the end. Jobs that fail meanwhile come after these.
-- total: retried by the calls before. The last call tells all of them in one event, as peers do (jobId = count).
-- An id without a failed job behind it leaves the index. Bound: `batch` jobs a call.

G.export('retry_jobs', {}, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local batch, want, left, now = r[1], r[2], r[3], G.now(q)
  if left < 0 then left = redis.call('ZCARD', q.failed) end
  local most = math.min(batch, left, want > 0 and want or batch)
  local ids = most > 0 and redis.call('ZRANGE', q.failed, 0, most - 1) or {}
  local retried = 0
  for _, id in ipairs(ids) do
    local ok, h = pcall(G.job_of, q, id)
    if ok and h.state == 'failed' then
      G.retry_failed(q, id, now, h)
      retried = retried + 1
    end
    redis.call('ZREM', q.failed, id)
  end
  left = left - #ids
  if #ids == 0 or (want > 0 and retried == want) then left = 0 end
  if left == 0 and r[4] + retried > 0 then G.emit(q.events, 'retried', G.int(r[4] + retried)) end
  return cmsgpack.pack({ retried, left })
end)
