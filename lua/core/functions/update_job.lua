-- update_job: write progress, a log line, new data, token usage or the cursor of a job.
-- KEYS 1 meta   ARGV 1 packed {kind, id, text, fence, processed_on, keep, message}, 2 number of an append of the attempt,
-- or ''   -> status (0 ok, 1 already: it was made before, 2 gone, 3 stale)
-- kind: 1 progress, 2 log line, 3 data, 4 tokens used, 5 cursor. fence 0 = not from a worker: the job only has to exist.
-- keep > 0: number of log lines kept, the newest ones.   message: of a progress; of data: its own_keys
-- (core/record.lua); false or absent = none

local function progress(q, id, text, _, message)
  if message then
    G.set(q, id, 'progress', text, 'progressMessage', message)
    G.emit(q.events, 'progress', id, 'data', text, 'message', message)
  else
    G.set(q, id, 'progress', text)
    redis.call('HDEL', q.J .. id, 'progressMessage')
    G.emit(q.events, 'progress', id, 'data', text)
  end
end

local function log(q, id, text, keep)
  local length = redis.call('RPUSH', q.P .. 'log:' .. id, text)
  if length == 1 then G.mark_side_keys(q) end
  if keep > 0 and length > keep then redis.call('LTRIM', q.P .. 'log:' .. id, -keep, -1) end
end

local function data(q, id, text, _, own_keys, fence)
  G.set_data(q.J .. id, text, own_keys)
  if fence == 0 then redis.call('HDEL', q.J .. id, 'ownKeys') end
end

local function field(name)
  return function(q, id, text) G.set(q, id, name, text) end
end

local KINDS = { progress, log, data, field('tpmTokens'), field('cursor') }

G.export('update_job', { 'allow-oom' }, function(q, r)
  local rejected = G.reject_call(q, r)
  if rejected then return rejected end
  if G.has_appended(q, r.id, r.fence, r.number) then return G.ALREADY end
  KINDS[r.kind](q, r.id, r.text, r.keep, r.message, r.fence)
  return G.OK
end)
