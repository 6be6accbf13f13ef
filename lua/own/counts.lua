-- counts: how many jobs are in each state, and whether the queue is paused.
-- KEYS 1 meta   -> {waiting, active, delayed, prioritized, completed, failed, paused, suspended, waiting children}
-- No scan: every number is a length that the server keeps, or two places in a sorted set for each priority in use,
-- so the cost does not grow with the queue.

G.counts = function(q)
  local call = redis.call
  local pending = redis.pcall('XPENDING', q.stream, G.GROUP)
  local from_stream = type(pending[1]) == 'number' and pending[1] or 0
  local waiting = math.max(0, call('XLEN', q.stream) - from_stream) + call('LLEN', q.lifo) + call('LLEN', q.priority)
  local from_lists = math.max(0, tonumber(call('GET', q.list_active) or '0') or 0)
  local delayed, prioritized = G.count_scheduled(q, G.now(q))
  return {
    waiting, from_stream + from_lists, delayed, prioritized,
    call('ZCARD', q.completed), call('ZCARD', q.failed), call('HGET', q.meta, 'paused') == '1' and 1 or 0,
    call('ZCARD', q.suspended),
    call('ZCARD', q.waiting_children),
  }
end

G.export('counts', { 'no-writes' }, function(keys) return G.counts(G.queue(keys[1])) end)
