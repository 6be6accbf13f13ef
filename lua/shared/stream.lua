-- The job stream and its consumer group: push, read, acknowledge.

G.push_stream = function(q, id, name)
  return redis.call('XADD', q.stream, '*', 'jobId', id, 'name', name or '')
end

-- A job that is ready goes to the end of the stream; `eid` lets it be found there again without a search.
G.make_waiting = function(q, id, name)
  redis.call('HSET', q.J .. id, 'state', 'waiting', 'eid', G.push_stream(q, id, name))
end

-- Acknowledge and delete entries (a list of stream entry ids, at most a few hundred). What cannot be deleted,
-- because a foreign key stands in the stream's place, is no reason to forget what has been done.
G.settle_entries = function(q, entries)
  if #entries == 0 then return end
  redis.pcall('XACK', q.stream, G.GROUP, unpack(entries))
  redis.pcall('XDEL', q.stream, unpack(entries))
end

-- New entries for a consumer; the group is created where it is missing (first use, FLUSHALL, DEL).
G.read_stream = function(q, consumer, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', G.GROUP, consumer, 'COUNT', count, 'STREAMS', q.stream, '>')
  if reply and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then error(reply.err) end
    redis.call('XGROUP', 'CREATE', q.stream, G.GROUP, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', G.GROUP, consumer, 'COUNT', count, 'STREAMS', q.stream, '>')
  end
  if not reply or not reply[1] then return {} end
  return reply[1][2]
end

-- The job id that an entry names, or nil for an entry that is not ours.
G.entry_job = function(fields)
  if not fields then return nil end
  if fields[1] == 'jobId' then return fields[2] end
  for i = 1, #fields - 1, 2 do
    if fields[i] == 'jobId' then return fields[i + 1] end
  end
  return nil
end

local SAME_MS_MAX = 2000

-- The entry of a job: the one its record names, else one made in the millisecond in which the job was added. Nil if
-- neither is there: an entry of a Node peer, say, whose clock is its own.
G.find_entry = function(q, id, eid, timestamp)
  if eid == '' then return nil end
  local from, count = eid or timestamp, eid and 1 or SAME_MS_MAX
  if not from then return nil end
  local found = redis.pcall('XRANGE', q.stream, from, from, 'COUNT', count)
  if found.err then return nil end
  for _, entry in ipairs(found) do
    if G.entry_job(entry[2]) == id then return entry[1] end
  end
  return nil
end
