-- write_claim: get a ballot, which a commit needs. Earlier ballots can no longer commit. KEYS 1 meta of the home
--   ARGV 1 packed {write, query, batch, token, floor, driver}   -> packed {state, ballot}
--   The ballot is '<number>:<token>', its number above `floor`; of a write that is decided, the ballot that decided it.
--   'aborted' also if the driver ('' = any) is not registered: the write expired, and another driver began it again.
-- write_commit: name the winning attempts, verify that all their pieces are stored, and commit.
-- KEYS 1 meta   ARGV 1 packed {write, query, batch, winners, first, total, is home 0|1, keep ms, ballot, facts,
-- last commit, queues}
-- -> packed {state, text}; winner: {attempt, pieces}, `first` its place among `total`. The last chunk commits: at
-- the home 'committed', in other queues 'prepared'. 'lost' = pieces are missing (text: of which attempt); 'fenced' = a later
-- ballot exists (text: that ballot): nothing was committed.
--   queues: at the home, the other queues with winners. They are registered again: the home's list may have expired
--   between `write_open` and `write_stage`.
--   last commit: -1, or that of `write_drain`; 'changed' = another write was committed in this queue since.
--   For a write that is already committed or done, its state is returned and nothing changes. keep: how long a stream's
--   ledger is kept. facts: a text for the report of the write.
-- Bound: the winners and queues given.
-- write_drain: delete the waiting jobs of a queue before an overwrite is committed, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {last commit, cursor, batch, total}   -> packed {state, deleted, cursor, last commit}
--   last commit: -1 = return that of the queue, and delete nothing. Otherwise the batch is deleted only if no write was
--   committed in the queue since ('ok'; else 'changed'): the jobs of a later commit stay, also if this call is late.
--   cursor, batch, total: as for `drain`. Bound: as for `drain`.

local WINNER = G.rows.winner
local S = G.staging

G.export('write_claim', { 'allow-oom' }, function(q, r)
  local w, state = S.read(q, r)
  if state ~= 'open' then return { state = state, ballot = S.ballot(w) } end
  if not S.has_driver(w, r.driver) then return { state = 'aborted', ballot = '' } end
  local ballot = S.raise_ballot(q, w, r.token, r.floor)
  S.touch(q, w)
  return { state = state, ballot = ballot }
end)

local function decide(q, w, r)
  local state = r.is_home == 1 and 'committed' or 'prepared'
  S.register(q, w, G.int(G.now(q)))
  if r.is_home == 1 then S.count_commit(q) end
  if r.is_home == 1 and r.query ~= '' then S.record_batch(q, r.query, r.batch, r.keep) end
  redis.call('HSET', w.manifest, 'state', state, 'facts', r.facts)
  S.touch(q, w)
  return state
end

-- Return why the ballot may not name winners here, and the ballot that prevents it; nil if it may.
local function objection(q, w, r)
  local state, ballot, present = S.state(q, w, r.query, r.batch), r.ballot, S.ballot(w)
  if r.is_home == 1 then
    if state ~= 'open' then return state, '' end
    if ballot ~= present then return 'fenced', present end
    return nil
  end
  if state ~= 'open' and state ~= 'prepared' then return state, '' end
  if ballot == present then
    if state == 'prepared' then return state, '' end
    return nil
  end
  if S.number_of(present) >= S.number_of(ballot) then return 'fenced', present end
  redis.call('HSET', w.manifest, 'state', 'open', 'ballot', ballot)
  redis.call('UNLINK', w.won)
  return nil
end

local function reply(state, id) return { state = state, id = id or '' } end

G.export('write_commit', { 'allow-oom' }, function(q, r)
  local w, winners, first, total = S.write(q, r.write), r.winners, r.first, r.total
  local problem, present = objection(q, w, r)
  if problem then return reply(problem, present) end
  if r.last_commit >= 0 and r.last_commit ~= S.last_commit(q) then
    return reply('changed')
  end
  for i = 1, #winners do
    local attempt = winners[i][WINNER.attempt]
    if redis.call('LLEN', S.list(w, attempt)) ~= winners[i][WINNER.pieces] then
      return reply('lost', attempt)
    end
  end
  for i = 1, #winners do
    local attempt = winners[i][WINNER.attempt]
    redis.call('PEXPIRE', S.list(w, attempt), S.KEEP)
    redis.call('ZADD', w.won, first + i, attempt)
  end
  for i = 1, #r.queues do redis.call('SADD', w.queues, r.queues[i]) end
  S.expire(w, S.KEEP)
  if first + #winners < total then
    S.touch(q, w)
    return reply('open')
  end
  if redis.call('ZCARD', w.won) ~= total then return reply('lost') end
  return reply(decide(q, w, r))
end)


G.export('write_drain', { 'allow-oom' }, G.for_operators(function(q, r)
  local last = S.last_commit(q)
  if r.last_commit ~= last then
    local state = r.last_commit < 0 and 'ok' or 'changed'
    return { state = state, deleted = 0, cursor = '', last_commit = last }
  end
  local deleted, cursor = G.drain_some(q, { delayed = false, cursor = r.cursor, batch = r.batch, total = r.total })
  return { state = 'ok', deleted = deleted, cursor = cursor, last_commit = last }
end))
