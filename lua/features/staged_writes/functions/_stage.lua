-- Share key names, states and cleanup of staged writes (docs/reference/functions.md, "Staged writes"). A write is
-- staged in pieces by several processes, committed in one step, and published as jobs piece by piece. Each queue of the
-- write has a manifest; the manifest of its home queue holds the decision. Every key of a write expires: before the
-- commit after the writer's time to live, after it in KEEP.

local S = G.staging

S.KEEP = 30 * 86400000 -- how long a committed write can wait to be published
S.LISTS_MAX = 100 -- lists deleted in one call
S.QUEUES_MAX = 1000 -- queues of one write

-- Return key names: manifest, attempts that have staged, winners by place, queues besides the home.
S.write = function(q, id)
  local stem = q.P .. 'write:' .. id
  return { id = id, manifest = stem, tried = stem .. ':tried', won = stem .. ':won', queues = stem .. ':queues' }
end

-- Return queues besides the home that are still to report, `most` at most.
S.queues_of = function(w, most) return redis.call('SRANDMEMBER', w.queues, most or S.QUEUES_MAX) end

S.list = function(w, attempt) return w.manifest .. ':try:' .. attempt end

-- Return the key with the number of the last committed micro-batch of a streaming query.
local function ledger(q, query) return q.P .. 'write-stream:' .. query end

-- Return the state of the write: open, prepared, committed, done, aborted; 'absent' = never begun, or expired.
S.state = function(q, w, query, batch)
  local state = redis.call('HGET', w.manifest, 'state')
  if state then return state end
  if query ~= '' then
    local last = tonumber(redis.call('GET', ledger(q, query)) or '')
    if last and batch <= last then return 'done' end
  end
  return 'absent'
end

-- The index lives as long as its members may, and expires if the queue is abandoned.
S.register = function(q, w, now)
  redis.call('ZADD', q.writes, now, w.id)
  redis.call('PEXPIRE', q.writes, S.KEEP)
end

-- keep: how long the final state is remembered, in ms.
S.begin = function(q, w, home, query, ttl, keep)
  local now = G.int(G.now(q))
  redis.call('HSET', w.manifest, 'state', 'open', 'home', home, 'query', query, 'at', now,
    'keep', G.int(keep))
  S.register(q, w, now)
  S.extend(w, ttl)
end

S.extend = function(w, ttl)
  redis.call('PEXPIRE', w.manifest, ttl)
  redis.call('PEXPIRE', w.tried, ttl)
  redis.call('PEXPIRE', w.queues, ttl)
end

S.record_batch = function(q, query, batch, keep)
  redis.call('SET', ledger(q, query), G.int(batch), 'PX', keep)
  G.record_temporary(q, 'write-stream:' .. query, G.now(q), keep)
end

-- Delete the lists of some attempts. Return true if there may be more.
S.delete_some = function(w)
  local attempts = redis.call('SPOP', w.tried, S.LISTS_MAX)
  for i = 1, #attempts do redis.call('UNLINK', S.list(w, attempts[i])) end
  return #attempts == S.LISTS_MAX
end

-- keep: ms for which the final state is remembered, so that late callers are rejected; 0 = not at all.
S.finish = function(q, w, state, keep)
  redis.call('ZREM', q.writes, w.id)
  redis.call('UNLINK', w.tried, w.won, w.queues)
  if keep > 0 then
    redis.call('HSET', w.manifest, 'state', state)
    redis.call('PEXPIRE', w.manifest, keep)
    G.record_temporary(q, 'write:' .. w.id, G.now(q), keep)
  else
    redis.call('UNLINK', w.manifest)
  end
end
