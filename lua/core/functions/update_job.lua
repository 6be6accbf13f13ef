-- update_job: write progress, a log line, new data, token usage or the cursor of a job.
-- KEYS 1 meta   ARGV 1 packed {kind, id, text, fence, processed_on, keep, message}   -> status (0 ok, 2 gone, 3 stale)
-- kind: 1 progress, 2 log line, 3 data, 4 tokens used, 5 cursor. fence 0 = not from a worker: the job only has to exist.
-- keep > 0: number of log lines kept, the newest ones.   message: of a progress; false or absent = none

local NO_END = {}

local function progress(q, id, text, _, message)
  if message then
    redis.call('HSET', q.J .. id, 'progress', text, 'progressMessage', message)
    G.emit(q.events, 'progress', id, 'data', text, 'message', message)
  else
    redis.call('HSET', q.J .. id, 'progress', text)
    redis.call('HDEL', q.J .. id, 'progressMessage')
    G.emit(q.events, 'progress', id, 'data', text)
  end
end

local function log(q, id, text, keep)
  local length = redis.call('RPUSH', q.P .. 'log:' .. id, text)
  if length == 1 then G.mark_side_keys(q) end
  if keep > 0 and length > keep then redis.call('LTRIM', q.P .. 'log:' .. id, -keep, -1) end
end

local function data(q, id, text)
  redis.call('HSET', q.J .. id, 'data', text)
end

local function tokens(q, id, text)
  redis.call('HSET', q.J .. id, 'tpmTokens', text)
end

local function cursor(q, id, text)
  redis.call('HSET', q.J .. id, 'cursor', text)
end

local KINDS = { progress, log, data, tokens, cursor }

G.export('update_job', { 'allow-oom' }, function(q, r)
  local state, fence, processed_on = unpack(redis.call('HMGET', q.J .. r.id, 'state', 'fence', 'processedOn'))
  if not state then return G.GONE end
  if r.fence > 0 then
    local rejected = G.check_attempt(r.fence, r.processed_on, NO_END, state, fence, processed_on)
    if rejected then return rejected end
  end
  KINDS[r.kind](q, r.id, r.text, r.keep, r.message)
  return G.OK
end)
